"""Shared stand-ins, builders and case runners for tests. No tests."""
