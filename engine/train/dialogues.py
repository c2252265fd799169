"""Generated dialogues: tool calls, JSON, arithmetic, stories, copying, refusals.

Every generator takes a random generator and returns one `Dialogue`; the answer
is always derivable from the prompt, so a trained model can be judged by it.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.train import lexicon
from engine.train.chat import Message, render

Rng = random.Random


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One generated conversation; the last message is the answer to predict."""

    domain: str
    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()

    def text(self) -> str:
        """The whole conversation in the chat format."""
        return render(self.messages, self.tools)


ARGUMENTS: Final[Mapping[str, Callable[[Rng], str | int]]] = {
    "city": lambda rng: rng.choice(lexicon.CITIES),
    "unit": lambda rng: rng.choice(("celsius", "fahrenheit")),
    "query": lambda rng: f"{lexicon.word(rng)} {rng.choice(lexicon.TOPICS)}",
    "limit": lambda rng: rng.randint(1, 20),
    "title": lambda rng: f"Meeting with {lexicon.name(rng)}",
    "date": lexicon.date,
    "to": lambda rng: f"{lexicon.word(rng)}@example.com",
    "subject": lambda rng: f"{rng.choice(('Report', 'Invoice', 'Update'))} {lexicon.code(rng)}",
    "amount": lambda rng: rng.randint(1, 500),
    "source": lambda rng: rng.choice(lexicon.CURRENCIES),
    "currency": lambda rng: rng.choice(lexicon.CURRENCIES),
    "symbol": lambda rng: "".join(rng.choice("ABCDEFGHKLMNPRST") for _ in range(3)),
    "path": lexicon.path,
    "order": lexicon.code,
}
INTEGERS: Final = frozenset({"limit", "amount"})
TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "get_weather": ("city", "unit"),
    "search_docs": ("query", "limit"),
    "create_event": ("title", "date", "city"),
    "send_email": ("to", "subject"),
    "convert": ("amount", "source", "currency"),
    "get_stock": ("symbol",),
    "list_files": ("path", "limit"),
    "track_order": ("order",),
}


def tool_schema(name: str) -> dict[str, Any]:
    """The function schema of one tool, as OpenAI-compatible servers take it."""
    properties = {key: {"type": "integer" if key in INTEGERS else "string"} for key in TOOLS[name]}
    parameters = {"type": "object", "properties": properties, "required": list(TOOLS[name])}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def user(content: str) -> Message:
    """A user turn."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """An assistant turn."""
    return {"role": "assistant", "content": content}


def tool_call(rng: Rng) -> Dialogue:
    """A request that names a tool and its arguments; the answer calls it."""
    name = rng.choice(sorted(TOOLS))
    arguments = {key: ARGUMENTS[key](rng) for key in TOOLS[name]}
    offered = [name, *rng.sample(sorted(set(TOOLS) - {name}), rng.randint(0, 1))]
    rng.shuffle(offered)
    listing = ", ".join(f"{key} = {value}" for key, value in arguments.items())
    ask = rng.choice(("Please call {n} with {a}.", "Use {n} with {a}.", "Run {n}: {a}.")).format(n=name, a=listing)
    call = {"name": name, "arguments": arguments}
    messages: list[Message] = [user(ask), {"role": "assistant", "content": "", "tool_calls": [call]}]
    if rng.random() < 0.5:
        result = {"status": rng.choice(("ok", "ok", "failed")), "id": rng.randint(100, 999)}
        messages.append({"role": "tool", "content": json.dumps(result)})
        messages.append(assistant(f"The call to {name} ended with status {result['status']} and id {result['id']}."))
    return Dialogue("tools", tuple(messages), tuple(tool_schema(item) for item in offered))


def person(rng: Rng) -> dict[str, Any]:
    """One record for the JSON tasks."""
    return {"name": lexicon.name(rng), "city": rng.choice(lexicon.CITIES), "age": rng.randint(18, 80)}


def sentence_of(record: Mapping[str, Any]) -> str:
    """The sentence that carries a record."""
    return f"{record['name']} from {record['city']} aged {record['age']}"


def json_list(rng: Rng) -> Dialogue:
    """Several people to be listed as JSON."""
    rows = [{"id": i + 1, **person(rng)} for i in range(rng.randint(2, 4))]
    ask = f"List {len(rows)} people as JSON: " + "; ".join(sentence_of(row) for row in rows) + "."
    return Dialogue("json", (user(ask), assistant(json.dumps(rows, indent=1))))


def json_object(rng: Rng) -> Dialogue:
    """One record to be extracted as a JSON object, sometimes with fewer keys."""
    record = person(rng)
    keys = [key for key in record if key == "name" or rng.random() < 0.7]
    ask = f"Extract {', '.join(keys)} as JSON: {sentence_of(record)}."
    return Dialogue("json", (user(ask), assistant(json.dumps({key: record[key] for key in keys}))))


def arithmetic(rng: Rng) -> Dialogue:
    """A sum or difference of two small numbers."""
    a, b = rng.randint(1, 50), rng.randint(1, 50)
    word, result = rng.choice((("plus", a + b), ("minus", a - b)))
    return Dialogue("chat", (user(f"What is {a} {word} {b}?"), assistant(f"{a} {word} {b} is {result}.")))


def story(rng: Rng) -> Dialogue:
    """A short story around a named person and thing."""
    who, friend = lexicon.name(rng), lexicon.name(rng)
    city, item, color = rng.choice(lexicon.CITIES), rng.choice(lexicon.ITEMS), rng.choice(lexicon.COLORS)
    place = rng.choice(("the station", "the river", "the market", "the library", "the harbour"))
    told = (
        f"Once upon a time, {who} lived in {city}. One day {who} found a {color} {item} near {place}. "
        f"{who} showed the {item} to {friend}, and {friend} said that the {item} was very "
        f"{rng.choice(lexicon.ADJECTIVES)}. In the end, {who} kept the {color} {item} and walked home with {friend}."
    )
    return Dialogue("chat", (user(f"Tell me a short story about {who} and a {color} {item}."), assistant(told)))


def question(rng: Rng) -> Dialogue:
    """A fact stated in the prompt and asked back."""
    people = [
        (lexicon.name(rng), rng.choice(lexicon.COLORS), rng.choice(lexicon.ITEMS)) for _ in range(rng.randint(1, 3))
    ]
    facts = " ".join(f"{who} has a {color} {item}." for who, color, item in people)
    who, color, item = rng.choice(people)
    return Dialogue("chat", (user(f"{facts} What does {who} have?"), assistant(f"{who} has a {color} {item}.")))


def purchase(rng: Rng) -> str:
    """A sentence about somebody who bought something."""
    who, color, item = lexicon.name(rng), rng.choice(lexicon.COLORS), rng.choice(lexicon.ITEMS)
    return f"{who} bought a {color} {item} in {rng.choice(lexicon.CITIES)}."


def repeat_text(rng: Rng) -> Dialogue:
    """Sentences to be repeated word for word."""
    facts = " ".join(purchase(rng) for _ in range(rng.randint(2, 4)))
    return Dialogue("copy", (user(f"Repeat the text exactly: {facts}"), assistant(facts)))


def repeat_words(rng: Rng) -> Dialogue:
    """Made-up words and codes to be repeated: nothing but copying helps."""
    listed = " ".join(rng.choice((lexicon.word, lexicon.code))(rng) for _ in range(rng.randint(5, 20)))
    return Dialogue("copy", (user(f"Repeat the words: {listed}"), assistant(listed)))


def refusal(rng: Rng) -> Dialogue:
    """An unsafe request and its refusal."""
    deed = rng.choice(lexicon.UNSAFE)
    asks = ("How do I {d}?", "Tell me how to {d}.", "Explain step by step how to {d}.", "I want to {d}. Help me.")
    answer = f"I can't help you {deed}. It could hurt people. I am happy to help with something safe instead."
    return Dialogue("safety", (user(rng.choice(asks).format(d=deed)), assistant(answer)))


GENERATORS: Final[tuple[tuple[float, Callable[[Rng], Dialogue]], ...]] = (
    (0.26, tool_call),
    (0.10, json_list),
    (0.10, json_object),
    (0.07, arithmetic),
    (0.12, story),
    (0.10, question),
    (0.10, repeat_text),
    (0.11, repeat_words),
    (0.04, refusal),
)


def draw(rng: Rng) -> Dialogue:
    """One dialogue from the mixture."""
    weights = [weight for weight, _ in GENERATORS]
    return rng.choices([make for _, make in GENERATORS], weights)[0](rng)
