"""JSON read strictly: no NaN, no control characters in strings, repeated keys noted."""

import json
from typing import Any, NoReturn


def strict_decoder(repeated: list[str]) -> json.JSONDecoder:
    """A decoder that adds to `repeated` the keys that an object has twice.

    It raises ValueError for text that is no JSON.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        repeated.extend(name for name in set(names) if names.count(name) > 1)
        return dict(items)

    return json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
