"""Statements about a run: disclosure, controls, checklist, badge."""
