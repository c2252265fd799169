"""Own traffic as a workload: files that other tools wrote, read as the rows of a prompt file."""
