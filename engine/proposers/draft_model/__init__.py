"""Proposers that run a second, smaller model, as a chain or as a tree."""
