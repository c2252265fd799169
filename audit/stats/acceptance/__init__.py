"""Statistics of acceptance."""
