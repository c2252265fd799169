"""The decoding loop, the state of a row, and the seams at which faults are built in."""
