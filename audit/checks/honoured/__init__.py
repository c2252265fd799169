"""Check `honoured`: the engine applied the sampling parameters that were requested."""
