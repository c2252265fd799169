"""Commands that serve, watch and maintain."""
