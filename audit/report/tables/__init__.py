"""The tables of a run's report."""
