"""The check `tool_call_equality`: what two arms call, and whether the engine read its own text rightly."""
