"""Command-line tools: `python -m engine.tools.NAME`."""
