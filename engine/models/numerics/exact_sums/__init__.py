"""Numerics by exact sums."""
