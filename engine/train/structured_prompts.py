"""Prompts with a grammar each, for the packaged suites: one of every kind in turn.

The grammar allows the answer that training taught, beside others. Deterministic.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from engine.train import lexicon
from engine.train.dialogues import Dialogue, Rng, arithmetic, json_list, json_object, question

SEED: Final = 987_656
SUM: Final = r"-?[0-9]+ (plus|minus) [0-9]+ is -?[0-9]+\."


def structured_rows(count: int) -> list[dict[str, Any]]:
    """`count` prompt rows."""
    rng = random.Random(SEED)
    return [_row(index, *KINDS[index % len(KINDS)], rng) for index in range(count)]


def _row(
    index: int, make: Callable[[Rng], Dialogue], grammar: Callable[[Dialogue], Mapping[str, Any]], rng: Rng
) -> dict[str, Any]:
    dialogue = make(rng)
    return {
        "id": f"structured-{index:03d}",
        "messages": [dialogue.messages[0]],
        "structured": dict(grammar(dialogue)),
        "domain": next(iter(grammar(dialogue))),
    }


def _type_of(value: Any) -> dict[str, Any]:
    """The schema of values like this one."""
    if isinstance(value, dict):
        properties = {key: _type_of(part) for key, part in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(value),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        return {"type": "array", "items": _type_of(value[0]), "minItems": len(value), "maxItems": len(value)}
    return {"type": "integer" if isinstance(value, int) else "string"}


def _schema(dialogue: Dialogue) -> Mapping[str, Any]:
    return {"json": _type_of(json.loads(str(dialogue.messages[1]["content"])))}


def _sum(_dialogue: Dialogue) -> Mapping[str, Any]:
    return {"regex": SUM}


def _choice(dialogue: Dialogue) -> Mapping[str, Any]:
    """The sentences of the question: one of them answers it."""
    asked = str(dialogue.messages[0]["content"])
    return {"choice": [f"{sentence}." for sentence in asked.split(". ")[:-1]]}


def _sentence(_dialogue: Dialogue) -> Mapping[str, Any]:
    listed = {"color": lexicon.COLORS, "item": lexicon.ITEMS}
    rules = [f"{name}: {' | '.join(json.dumps(word) for word in known)}" for name, known in listed.items()]
    return {"grammar": "\n".join(('start: name " has a " color " " item "."', "name: /[A-Z][a-z]+/", *rules))}


KINDS: Final[Sequence[tuple[Callable[[Rng], Dialogue], Callable[[Dialogue], Mapping[str, Any]]]]] = (
    (json_object, _schema),
    (arithmetic, _sum),
    (json_list, _schema),
    (question, _choice),
    (question, _sentence),
)
