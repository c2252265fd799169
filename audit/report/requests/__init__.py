"""One request, token by token, and where two arms part."""
