"""The Python interface, for notebooks and scripts; `audit` exports it."""
