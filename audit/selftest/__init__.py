"""Does the battery find what is broken, and nothing else? Arms, evidence, judgement, tables."""
