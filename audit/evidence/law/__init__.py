"""Emitted tokens beside the laws on record: rows, sums and tests."""
