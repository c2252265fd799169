"""Directed requests, which bring about the situations that the requests of a suite did not."""
