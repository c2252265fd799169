"""What trained draft heads compute: decoders over rows of numbers instead of token ids."""
