"""Where two arms part, and whether rounding explains it."""
