"""Forms of answers and pages that are a server's own, read as those of OpenAI and of Prometheus."""
