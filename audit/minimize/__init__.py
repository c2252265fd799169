"""Reduces a stored run with a fault to a small suite with the same verdict."""
