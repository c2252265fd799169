"""Speculation coverage: the situations that an arm met, and how often each check examined them."""
