"""Proposers that run trained heads on the target's hidden states."""
