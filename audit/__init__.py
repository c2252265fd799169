"""What a user and an auditor touch: suites, checks, store, gate, reports."""
