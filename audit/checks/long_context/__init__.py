"""Long context: equality, law and acceptance by the length of the context."""
