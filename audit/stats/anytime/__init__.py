"""Statistics that stay valid at any stopping time."""
