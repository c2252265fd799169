"""Commands that decide about a deployment."""
