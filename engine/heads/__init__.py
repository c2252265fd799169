"""The computations of trained draft heads: decoders over rows of numbers instead of token ids."""
