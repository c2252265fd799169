"""Proposers that draft with a part of the target itself."""
