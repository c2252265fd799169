"""Commands that read the store."""
