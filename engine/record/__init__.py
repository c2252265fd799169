"""What a run leaves behind: traces, the recorder that writes them, metrics and cost."""
