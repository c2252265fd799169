"""Reads runs, arms and verdicts."""
