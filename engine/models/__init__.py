"""Models behind one protocol: our own forward, unmodified transformers, scripted."""
