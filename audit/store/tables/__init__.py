"""The tables of the store and the texts of its views."""
