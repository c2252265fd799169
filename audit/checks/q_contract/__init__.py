"""Check `q_contract`: drafted tokens were drawn from the declared q."""
