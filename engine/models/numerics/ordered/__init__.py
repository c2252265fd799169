"""Numerics by sums in a fixed order."""
