"""Schema conformance: finished answers under a grammar, judged from their text alone."""
