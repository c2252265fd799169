"""Records of tokens that no loop of this engine drew."""
