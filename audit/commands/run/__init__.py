"""Commands that run or judge suites."""
