"""Bind evidence to evaluation reports, one file per report format."""
