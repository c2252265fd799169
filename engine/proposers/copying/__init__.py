"""Proposers that copy earlier text: no draft model."""
