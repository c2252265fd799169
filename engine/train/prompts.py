"""Prompts for the packaged suites: dialogues that training never saw, without their answers.

Some have a grammar, one of every kind in turn, which allows the answer that training taught, beside others.
Deterministic.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine.train import lexicon
from engine.train.dialogues import (
    Dialogue,
    Rng,
    arithmetic,
    json_list,
    json_object,
    question,
    refusal,
    repeat_text,
    repeat_words,
    story,
    tool_call,
)

SEED: Final = 987_654
"""Neither the corpus' seed nor that of its held-out part."""
DOMAINS: Final[Mapping[str, Sequence[Callable[[Rng], Dialogue]]]] = {
    "tools": (tool_call,),
    "json": (json_object, json_list),
    "chat": (story, question, arithmetic),
    "copy": (repeat_text, repeat_words),
    "safety": (refusal,),
}
STRUCTURED: Final = 120
LONG_SEED: Final = 987_655
LONG_CHARACTERS: Final = 1150
"""Of the conversation before the last question: with it some 450 to 550 tokens."""
CONTEXTS_SEED: Final = 987_671
CONTEXT_CHARACTERS: Final = ((20, 0), (20, 150), (20, 420), (24, 850), (12, 1500), (12, 2400))
"""Conversations, and the characters before the last question; the last ones fill the context of the bundled models."""
TOOLS_SEED: Final = 987_656
TOOL_ROWS: Final = 120
CHOICE_SEED: Final = 987_657
CHOICE_ROWS: Final = 60
CODE: Final = (
    "import os\nimport sys\n\n\nclass {Name}:\n    def __init__(self, {arg}):\n        self.{arg} = {arg}\n",
    'def {name}({arg}, default=None):\n    """Return the {arg} of this object.\n',
    "from collections import deque\n\n\nclass {Name}(object):\n    def {name}(self):\n",
    "def test_{name}(self):\n    for {arg} in range(10):\n        self.assertEqual(",
    "try:\n    import {name}\nexcept ImportError:\n    {name} = None\n\nclass {Name}Error(Exception):\n",
    "    def {name}(self, {arg}):\n        if not isinstance({arg}, str):\n            raise TypeError(",
)
STRUCTURED_SEED: Final = 987_656
SUM: Final = r"-?[0-9]+ (plus|minus) [0-9]+ is -?[0-9]+\."


def dialogue_row(domain: str, index: int, dialogue: Dialogue) -> dict[str, Any]:
    """A prompt row: the first user turn and the tools."""
    row: dict[str, Any] = {"id": f"{domain}-{index:03d}", "messages": [dialogue.messages[0]]}
    return row | ({"tools": list(dialogue.tools)} if dialogue.tools else {})


def code_row(index: int, rng: Rng) -> dict[str, Any]:
    """A prompt row of raw text: the beginning of a source file."""
    name = lexicon.word(rng)
    text = rng.choice(CODE).format(name=name, Name=name.capitalize(), arg=lexicon.syllable(rng))
    return {"id": f"code-{index:03d}", "prompt": f"<|begin|># file: {name}.py\n{text}"}


def long_row(index: int, rng: Rng) -> dict[str, Any]:
    """A prompt row of many turns, the last of which asks for something new."""
    messages: list[Mapping[str, Any]] = []
    while sum(len(message["content"]) for message in messages) < LONG_CHARACTERS:
        messages += rng.choice((story, question, json_object, repeat_text))(rng).messages
    asked = rng.choice((question, json_object, repeat_words))(rng).messages[0]
    return {"id": f"long-{index:03d}", "messages": [*messages, asked]}


def prompt_rows(count: int) -> dict[str, list[dict[str, Any]]]:
    """`count` prompt rows per domain."""
    rng = random.Random(SEED)
    rows = {
        domain: [dialogue_row(domain, i, makers[i % len(makers)](rng)) for i in range(count)]
        for domain, makers in DOMAINS.items()
    }
    return rows | {"code": [code_row(i, rng) for i in range(count)]}


def long_rows(count: int) -> list[dict[str, Any]]:
    """`count` long conversations; the cards of the family do not measure them."""
    rng = random.Random(LONG_SEED)
    return [long_row(i, rng) for i in range(count)]


def context_rows() -> list[dict[str, Any]]:
    """Conversations of every length that the bundled models read, from one question to all but an answer."""
    rng = random.Random(CONTEXTS_SEED)
    sizes = [size for count, size in CONTEXT_CHARACTERS for _ in range(count)]
    return [_context_row(index, size, rng) for index, size in enumerate(sizes)]


def _context_row(index: int, size: int, rng: Rng) -> dict[str, Any]:
    messages: list[Mapping[str, Any]] = []
    while size and (left := size - sum(len(message["content"]) for message in messages)) > 0:
        asked, answer = rng.choice((story, question, json_object, repeat_text))(rng).messages[:2]
        spoken = str(answer["content"])
        # the last answer ends where the size is reached, at a word
        cut = spoken if len(spoken) <= left else spoken[: max(left - len(asked["content"]), 20)].rpartition(" ")[0]
        messages += [asked, {**answer, "content": cut}]
    asked = rng.choice((question, json_object, repeat_words))(rng).messages[0]
    return {"id": f"context-{index:03d}", "messages": [*messages, asked]}


def tool_rows(count: int) -> list[dict[str, Any]]:
    """`count` conversations with tools: half ask for a call, the others go on after one, ask for two, or for none."""
    rng = random.Random(TOOLS_SEED)
    make = (_first_call, _after_result, _first_call, _second_call, _first_call, _two_calls, _first_call, _no_call)
    return [_offer_row(index, make[index % len(make)], rng) for index in range(count)]


def choice_rows(count: int) -> list[dict[str, Any]]:
    """`count` conversations whose answer must call a tool: any, or in every second one the tool that is named."""
    rng = random.Random(CHOICE_SEED)
    return [_choice_row(index, rng) for index in range(count)]


def _choice_row(index: int, rng: Rng) -> dict[str, Any]:
    make = (_first_call, _first_call, _no_call, _two_calls, _second_call, _first_call)
    row = _offer_row(index, make[index % len(make)], rng)
    choice = {"name": rng.choice(row["tools"])["function"]["name"]} if index % 2 else "required"
    return {**row, "tool_choice": choice}


def _offer_row(index: int, make: Callable[[Rng], Dialogue], rng: Rng) -> dict[str, Any]:
    name, dialogue = make.__name__.removeprefix("_"), make(rng)
    tools = {tool["function"]["name"]: tool for tool in dialogue.tools}
    return {
        "id": f"{name.replace('_', '-')}-{index:03d}",
        "messages": list(dialogue.messages),
        "tools": list(tools.values()),
    }


def _first_call(rng: Rng) -> Dialogue:
    dialogue = tool_call(rng)
    return replace(dialogue, messages=dialogue.messages[:1])


def _finished(rng: Rng) -> Dialogue:
    """A whole conversation around one call, with its result and the answer to it."""
    dialogue = tool_call(rng)
    while len(dialogue.messages) < 4:
        dialogue = tool_call(rng)
    return dialogue


def _after_result(rng: Rng) -> Dialogue:
    """The result of a call is there: the answer calls nothing."""
    dialogue = _finished(rng)
    return replace(dialogue, messages=dialogue.messages[:3])


def _second_call(rng: Rng) -> Dialogue:
    first, second = _finished(rng), _first_call(rng)
    return Dialogue("tools", (*first.messages, *second.messages), (*first.tools, *second.tools))


def _two_calls(rng: Rng) -> Dialogue:
    """One turn that asks for two calls, which training never showed."""
    first, second = _first_call(rng), _first_call(rng)
    asked = {"role": "user", "content": f"{first.messages[0]['content']} {second.messages[0]['content']}"}
    return Dialogue("tools", (asked,), (*first.tools, *second.tools))


def _no_call(rng: Rng) -> Dialogue:
    """Tools are offered to a question that needs none."""
    return Dialogue("tools", rng.choice((story, question))(rng).messages[:1], tool_call(rng).tools)


def write_prompts(folder: Path, count: int) -> None:
    """Write `count` prompts per domain, as many long ones, conversations with tools, and prompts with grammars."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {
        "long": long_rows(count),
        "tool_calls": tool_rows(TOOL_ROWS),
        "tool_choices": choice_rows(CHOICE_ROWS),
        "contexts": context_rows(),
        "structured": structured_rows(STRUCTURED),
    }
    for domain, result in {**prompt_rows(count), **more}.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in result)
        (folder / f"{domain}.jsonl").write_text(lines, encoding="utf-8")


def structured_rows(count: int) -> list[dict[str, Any]]:
    """`count` prompt rows."""
    rng = random.Random(STRUCTURED_SEED)
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
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": _type_of(value[0]), "minItems": len(value), "maxItems": len(value)}
    return {"type": "integer" if isinstance(value, int) else "string"}


def _schema(dialogue: Dialogue) -> Mapping[str, Any]:
    return {"json": _type_of(json.loads(str(dialogue.messages[1]["content"])))}


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
    (arithmetic, lambda _dialogue: {"regex": SUM}),
    (json_list, _schema),
    (question, _choice),
    (question, _sentence),
)
