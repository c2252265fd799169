"""Structural tags in Lark with lazy lexemes, as llguidance reads them.

Text beside tags is a lexeme that ends at the first trigger: from there on only a tag goes on.
"""

from __future__ import annotations

import json

from engine.core.structural_tag import Tag, TagGrammar


def tags_in_lark(grammar: TagGrammar) -> str:
    """A structural tag as a grammar of llguidance."""
    bare = " | ".join(f"tag_{number}" for number in range(len(grammar.tags)))
    lines = [f"bare: {bare}", *(f"tag_{number}: {_tag(tag)}" for number, tag in enumerate(grammar.tags))]
    if grammar.triggers is None:
        return "\n".join([f"start: {_separated(grammar)}", *lines])
    after = " | ".join(f"after_{number}" for number in range(len(grammar.tags)))
    lines += [f"later: {after}", "text: TEXT", "TEXT: /(.|\\n)*/"]
    for number, tag in enumerate(grammar.tags):
        trigger = next(text for text in grammar.triggers if tag.begin.startswith(text))
        lines.append(f"trigger_{number}[lazy]: TEXT {_text(trigger)}")
        lines.append(f"after_{number}: trigger_{number} {_tag(tag, len(trigger))}")
    return "\n".join(["%llguidance {}", f"start: {_triggered(grammar)}", *lines])


def _separated(grammar: TagGrammar) -> str:
    between = f"{_text(grammar.separator)} " if grammar.separator else ""
    tags = "bare" if grammar.stop_after_first else f"bare ({between}bare)*"
    return tags if grammar.at_least_one else f"({tags})?"


def _triggered(grammar: TagGrammar) -> str:
    if grammar.stop_after_first:
        return "bare" if grammar.at_least_one else "later | text"
    return "bare later* text" if grammar.at_least_one else "later* text"


def _tag(tag: Tag, skipped: int = 0) -> str:
    """The rule of a tag, without the first characters of its beginning."""
    begin = f"{_text(tag.begin[skipped:])} " if tag.begin[skipped:] else ""
    return f"{begin}%json {json.dumps(tag.schema, ensure_ascii=False)} {_text(tag.end)}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
