"""Check `accounting`: counts, lengths, roles and ends of a request agree."""
