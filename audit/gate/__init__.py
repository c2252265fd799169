"""Policies, and decisions on runs."""
