"""Types, errors, options and the registries: what every other layer may import."""
