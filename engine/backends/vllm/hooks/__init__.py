"""The code that runs inside vLLM's processes and records every step."""
