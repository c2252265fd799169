"""Check `prefix_measurable`: drafts were not selected by what follows them."""
