"""The interface of a check and its parameters."""
