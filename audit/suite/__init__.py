"""Reads and validates suites."""
