"""The options of a plug-in: those of `audit serve`, by name, with values of any type, as harnesses pass them."""

import os
from collections.abc import Mapping
from typing import Any, Final

from audit.errors import UserError
from audit.serve.evaluations.recorded_model import RecordedModel
from audit.serve.limits import GAMMA
from audit.serve.opened_arm import ServedSource
from audit.store.base.connection import default_url
from engine.core.types import RecordLevel

TEXTS: Final[Mapping[str, str | None]] = {
    "model": None,
    "draft": None,
    "proposer": None,
    "arm": None,
    "record": "scalars",
    "store": None,
}
LEVELS: Final = tuple(level.value for level in RecordLevel)
NUMBERS: Final[Mapping[str, int | None]] = {"gamma": GAMMA, "rows": None, "context": None, "seed": 0, "threads": 1}
SWITCH: Final = "speculation"
"""`off` decodes with the target alone."""


def recorded_model(given: Mapping[str, Any]) -> RecordedModel:
    """Open the model that the options describe.

    Raises:
        UserError: an unknown option, or a value that is none.
    """
    known = (*TEXTS, *NUMBERS, SWITCH)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UserError(f"no option {unknown[0]!r}; there are: {', '.join(known)}")
    texts = {name: given.get(name, usual) for name, usual in TEXTS.items()}
    numbers = {name: _number(name, given.get(name, usual)) for name, usual in NUMBERS.items()}
    if not texts["model"]:
        raise UserError("no model; name it: model=bundled:target, or a folder, hf:ORG/NAME or a suite")
    import torch

    torch.set_num_threads(numbers["threads"] or 1)
    source = ServedSource(
        texts["model"],
        texts["draft"],
        texts["proposer"],
        numbers["gamma"] or GAMMA,
        texts["arm"],
        numbers["rows"],
        _level(texts["record"]),
    )
    wish = source.wish() if _switch(given.get(SWITCH, True)) else source.wish().without_speculation()
    store = texts["store"] or os.environ.get("AUDIT_STORE") or default_url()
    return RecordedModel(wish, store, context=numbers["context"], seed=numbers["seed"] or 0)


def _level(word: str | None) -> str:
    if word not in LEVELS:
        raise UserError(f"record={word}: write one of {', '.join(LEVELS)}")
    return str(word)


def _number(name: str, value: Any) -> int | None:
    """A whole number, also as a text."""
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        raise UserError(f"{name}={value}: not a whole number") from None
    if number < (0 if name == "seed" else 1):
        raise UserError(f"{name}={value}: too small")
    return number


def _switch(value: Any) -> bool:
    """On or off, also as a truth value, which YAML makes of these words."""
    known = {"on": True, "true": True, "off": False, "false": False}
    word = str(value).lower()
    if word not in known:
        raise UserError(f"{SWITCH}={value}: write on or off")
    return known[word]
