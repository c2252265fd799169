"""Structural tags with two tags, in xgrammar's formats."""

from __future__ import annotations

from typing import Any

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def tagged(kind: str, schema: Any = POINT, **settings: Any) -> dict[str, Any]:
    """A document with the tags `<f=a>`, of the schema, and `<f=b>`, of a truth value."""
    tags = [
        {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": part}, "end": "</f>"}
        for begin, part in (("<f=a>", schema), ("<f=b>", {"type": "boolean"}))
    ]
    return {"type": "structural_tag", "format": {"type": kind, "tags": tags, **settings}}
