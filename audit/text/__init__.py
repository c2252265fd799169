"""Documents as text: reading, errors of schemas, files that appear whole or not at all."""
