"""Checks of a service: who gave the answers, and their form."""
