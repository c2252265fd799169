"""Check `transcript`: the whole record as one statement with a bound."""
