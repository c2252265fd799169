"""Write docs/policy.md from schemas/policy.json and the packaged policies.

``python -m docs.tools.policy_page docs/policy.md`` writes the page; a test compares it with the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import schemas
from audit.gate.policy import PACKAGED, load_policy
from docs.tools.written_page import page_writer

Schema = Mapping[str, Any]
HEAD: Final = """\
# Policy reference

Every key of a policy, generated from its JSON Schema (`audit schema policy`); `make docs` regenerates this page.
[Gate a deployment](how-to/gate-a-deployment.md) explains the rules and has examples. The gate refuses a policy with
a key that this page lacks.

`[]` stands for an entry of a list, `NAME` for a key that the author chooses.
"""
BOUNDS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minItems": "length at least",
}


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_tables(schemas.load("policy")), *_packaged()])


def _tables(schema: Schema) -> Iterator[str]:
    required = schema["required"]
    plain = {name: part for name, part in schema["properties"].items() if not _children(schema, part)}
    yield "## Top level\n"
    yield from _table((name, part, name in required) for name, part in _rows(schema, plain))
    for name, part in schema["properties"].items():
        if name not in plain:
            yield f"## {name}\n\n{part['description']}{'' if name in required else ' Optional.'}\n"
            yield from _table(_flat(schema, name, part))


def _rows(schema: Schema, parts: Mapping[str, Schema]) -> Iterator[tuple[str, Schema]]:
    yield from ((name, _resolved(schema, part)) for name, part in parts.items())


def _resolved(schema: Schema, part: Schema) -> Schema:
    """The part with its reference followed; its own words replace those of the reference."""
    name = part.get("$ref", "").rpartition("/")[2]
    return {**schema["$defs"][name], **part} if name else part


def _children(schema: Schema, part: Schema) -> dict[str, Schema]:
    """The parts below a part, by the end of their path."""
    whole = _resolved(schema, part)
    below = {f".{name}": child for name, child in whole.get("properties", {}).items()}
    for key, path in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(whole.get(key), Mapping):
            below[path] = whole[key]
    return below


def _flat(schema: Schema, path: str, part: Schema) -> Iterator[tuple[str, Schema, bool]]:
    needed = _resolved(schema, part).get("required", ())
    for end, child in _children(schema, part).items():
        whole = _resolved(schema, child)
        if whole.get("type") != "object" or ("description" in whole and end != "[]"):
            yield path + end, whole, end[1:] in needed
        if whole.get("type") == "object" or _resolved(schema, whole.get("items", {})).get("type") == "object":
            yield from _flat(schema, path + end, child)


def _table(rows: Iterator[tuple[str, Schema, bool]]) -> Iterator[str]:
    yield "| key | value | required | meaning |"
    yield "|---|---|---|---|"
    for path, part, required in rows:
        yield f"| `{path}` | {_value(part)} | {'yes' if required else 'no'} | {part.get('description', '')} |"
    yield ""


def _value(part: Schema) -> str:
    if "const" in part:
        return _code(part["const"])
    bounds = [f"{text} {part[key]}" for key, text in BOUNDS.items() if key in part]
    default = [f"default {_code(part['default'])}"] if "default" in part else []
    return ", ".join([_kind(part), *bounds, *default])


def _kind(part: Schema) -> str:
    values: Sequence[str] = part.get("enum", ())
    if values:
        return " or ".join(_code(value) for value in values)
    if part.get("type") == "array":
        return f"list of {_kind(part['items'])}"
    return {"object": "mapping", "string": "text"}.get(part.get("type", "string"), part.get("type", "text"))


def _code(value: str | bool | int) -> str:
    """A value as YAML writes it."""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _packaged() -> Iterator[str]:
    yield "## Packaged policies\n"
    yield "`--policy NAME` takes one of these; `--policy-digest` pins its bytes.\n"
    yield "| name | purpose | digest |"
    yield "|---|---|---|"
    for name, digest in PACKAGED.items():
        purpose = " ".join(load_policy(name).document.get("description", "").split())
        yield f"| `{name}` | {purpose} | `sha256:{digest}` |"
    yield ""


write = page_writer(page)

if __name__ == "__main__":
    write()
