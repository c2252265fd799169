"""Commands that give evidence to others and take it from them."""
