"""Watch a live server: read its counters, keep the series, and tell when acceptance fell."""
