"""What checks judge (records of arms) and what they answer (verdicts), with shared readings of both."""
