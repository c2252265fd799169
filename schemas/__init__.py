"""JSON Schema 2020-12 documents of all file formats, and their loader.

The descriptions in the documents are the reference.
"""

import json
from importlib.resources import files
from typing import Any


def names() -> tuple[str, ...]:
    """The names of all schemas, sorted."""
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in entries if name.endswith(".json")))


def load(name: str) -> dict[str, Any]:
    """Load a fresh copy of the schema called `name`.

    Raises:
        KeyError: there is no schema of that name.
    """
    if name not in names():
        raise KeyError(name)
    schema: dict[str, Any] = json.loads(files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return schema
