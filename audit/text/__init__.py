"""Text documents: reading, schema errors, atomic writing."""
