"""Statistics on arrays: pure functions, no I/O."""
