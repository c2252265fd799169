"""Check `law`: emitted tokens follow the target's distribution."""
