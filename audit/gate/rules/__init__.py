"""The rules of the gate: each takes the facts of a run and yields the requirements that they do not meet."""
