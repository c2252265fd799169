"""Measure on this machine which ways of computing logits are bitwise stable."""
