"""Generators of the pages, pictures and release files; `make docs` runs those that need nothing else."""
