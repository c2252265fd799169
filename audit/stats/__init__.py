"""Statistics on plain arrays: each module states its source, its assumptions and its cost.

Knows nothing about traces, arms, stores or files.
"""
