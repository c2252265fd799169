"""SQL of the user's own, in a process with limits."""
