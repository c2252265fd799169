"""Alembic environment and versions of the provenance store."""
