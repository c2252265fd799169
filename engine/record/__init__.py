"""The record of a run: traces, the recorder that writes them, metrics and cost."""
