"""Input of checks (records of arms), their output (verdicts), and shared helpers for both."""
