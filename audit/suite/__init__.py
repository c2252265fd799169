"""A suite as the user writes it, read and checked."""
