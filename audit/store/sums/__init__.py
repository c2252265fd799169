"""Sums that a finished run keeps, and how they are made again."""
