"""From a verdict of a stored run to a small suite that gives the same verdict."""
