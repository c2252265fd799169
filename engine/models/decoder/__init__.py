"""The decoder: weights, layers and step graphs."""
