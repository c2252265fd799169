"""Runs spread over processes and machines: shards, their joining, and workers that a coordinating process feeds."""
