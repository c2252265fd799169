"""Check `rng_streams`: random numbers are keyed, uniform, independent and used once."""
