"""Checks of equal tokens: `greedy_equality`, `coupled_equality`, and the triage of a divergence."""
