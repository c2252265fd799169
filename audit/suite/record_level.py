"""The record level of an arm: the suite's own, or by `auto` the target's vocabulary decides.

The vocabulary comes from the target's config.json, so that a suite has one level before any model is loaded, and a
resumed run has it again. A model on a hub counts as large, downloaded or not.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from audit.suite.models import BUNDLED, HUB, SEEDED, SERVED
from engine.core.types import RecordLevel

AUTO: Final = "auto"
LARGEST_WHOLE: Final = 4096
"""Tokens of the largest vocabulary whose rows `auto` keeps whole: about 50 KB per token with a draft of four."""


def effective_level(requested: str, target: str) -> RecordLevel:
    """The level for a requested level and the source of the target."""
    if requested != AUTO:
        return RecordLevel(requested)
    size = vocabulary_of(target)
    return RecordLevel.FULL if size is not None and size <= LARGEST_WHOLE else RecordLevel.TOPK


def vocabulary_of(source: str) -> int | None:
    """The size of the vocabulary in a model's config.json; 0 for a script, None if the source does not show it."""
    if SEEDED.fullmatch(source):
        return 0
    if source.startswith((HUB, SERVED)):
        return None
    bundled = source.startswith(BUNDLED)
    folder = Path(str(files("engine"))) / "bundled" / source.removeprefix(BUNDLED) if bundled else Path(source)
    try:
        return _size(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        # opening the model reports a damaged file
        return None


def _size(config: Any) -> int | None:
    """`vocab_size` of the model, or of its text part if it reads images too."""
    parts = (config, config.get("text_config")) if isinstance(config, Mapping) else ()
    sizes = (part.get("vocab_size") for part in parts if isinstance(part, Mapping))
    return next((size for size in sizes if type(size) is int), None)
