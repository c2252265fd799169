"""Comparisons of runs, instances and foreign figures."""
