"""Speculative decoding that records every decision it takes.

Knows no SQL, no command line, no YAML and no policy.
"""
