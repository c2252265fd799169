"""From logits to tokens: transforms, random numbers, draws and stop conditions."""
