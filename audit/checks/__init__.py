"""Checks: one file each, pure functions of evidence."""
