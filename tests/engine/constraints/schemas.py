"""Random JSON Schemas of supported keywords, from a seed."""

from __future__ import annotations

import random
from typing import Any

WORDS = ("name", "city", "age", "tags", "ok", "id", "note", "x")


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kinds = ("string", "integer", "number", "boolean", "null", "enum", "const", "anyOf")
    kind = rng.choice(kinds if depth == 0 else (*kinds, "object", "object", "array"))
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(1, 12)}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(1, 500)}
    if kind == "enum":
        return {"enum": rng.sample([1, 2.5, "a", "b c", None, True, [1], {"k": 0}], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice([0, "fixed", False])}
    if kind == "anyOf":
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 4}]}
    if kind == "array":
        low = rng.randint(0, 2)
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.randint(0, 2)}
    if kind == "object":
        names = rng.sample(WORDS, rng.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: schema(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.8],
            "additionalProperties": False,
        }
    return {"type": kind}
