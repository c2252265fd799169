"""One run of a store as a file for a third party: written, verified without a store, read into another store."""
