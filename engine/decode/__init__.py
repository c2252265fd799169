"""The decoding loop, the state of a row, and the parts that faults can replace."""
