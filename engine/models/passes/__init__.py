"""Passes over given texts."""
