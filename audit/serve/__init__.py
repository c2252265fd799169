"""`audit serve`: an OpenAI-compatible server over the built-in engine, whose answers are records of a store."""
