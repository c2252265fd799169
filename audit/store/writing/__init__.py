"""Writes runs, requests, events and content."""
