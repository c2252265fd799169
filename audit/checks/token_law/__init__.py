"""Check `token_law`: tokens of any engine follow the law of the target, whose rows a reference pass gives."""
