"""Plug-ins of evaluation harnesses: models whose answers are records of a store."""
