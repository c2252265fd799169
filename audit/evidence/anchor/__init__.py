"""Rows beside those of an independent reference."""
