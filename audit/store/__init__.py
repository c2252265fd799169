"""The provenance store."""
