"""Numerics by tiles of a fixed shape."""
