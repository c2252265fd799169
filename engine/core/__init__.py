"""Types, errors, options and the registries, which every other layer may import."""
