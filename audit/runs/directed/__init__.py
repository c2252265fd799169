"""Directed requests: what a run adds to bring about the situations that its suite's own requests did not."""
