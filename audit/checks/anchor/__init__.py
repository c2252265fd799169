"""Check `anchor`: the recorded p is that of an independent pass of the target."""
