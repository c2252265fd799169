"""Check `replay`: every decision recomputed from the record."""
