"""The inputs of every proposer: its options with their defaults, and the model that it drafts with.

The module needs no torch, so that a suite can be checked before anything is loaded. A proposer that has no options
has no entry in `OPTIONS`; one that drafts without a model of its own has none in `NEEDS`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.core.options import ChoiceOption, NumberListOption, OptionType, ScalarOption, numbers, read_options
from engine.proposers.confidence import STOP_BELOW
from engine.proposers.tree_planning import ROUNDING, TreeShape
from engine.sampling.draw import Siblings

MATCHING: Final = "matching"
REJECTION: Final = "rejection"
NO_TREE: Final = "0"
RATE: Final = ScalarOption(0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class TextOption:
    """A setting that takes texts of a form."""

    default: str
    wants: str
    has_form: Callable[[str], bool]

    def takes(self, value: object) -> bool:
        """Whether `value` is such a text."""
        return isinstance(value, str) and self.has_form(value)


def _are_rates(text: str) -> bool:
    return all(NumberListOption("", RATE).takes(level) for level in text.split("/"))


def _is_shape(text: str) -> bool:
    try:
        return bool(shape_of(text).parents or not text)
    except (ValueError, InvalidRequest):
        return False


def _are_layers(text: str) -> bool:
    return not text.strip() or all(word.strip().isdecimal() for word in text.split(","))


def rates_of(text: str) -> tuple[tuple[float, ...], ...]:
    """The acceptance vectors of a text such as "0.6,0.2/0.7,0.1", one per level.

    Raises:
        ValueError: a part that is no number.
    """
    return tuple(numbers(level) for level in text.split("/"))


def shape_of(text: str) -> TreeShape:
    """The tree of a text such as "-1,-1,0"; of none, the empty tree.

    Raises:
        ValueError: a part that is no whole number.
        InvalidRequest: a parent that does not come before its child.
    """
    return TreeShape(tuple(int(parent) for parent in text.split(",")) if text else ())


_RATES: Final = "0.48,0.06,0.03,0.02/0.66,0.07,0.02,0.03/0.71,0.06,0.03,0.02"
"""Acceptance vectors, level by level; the last holds for deeper levels."""
_LAYERS: Final = TextOption("", 'layers from 0 as text, such as "3,5,7"', _are_layers)
REACH: Final[Mapping[str, OptionType]] = {"top_k": ScalarOption(10, 1, 64), "depth": ScalarOption(7, 1, 32)}
"""Of a dynamic tree, as EAGLE-2's authors set it."""
OPTIONS: Final[Mapping[str, Mapping[str, OptionType]]] = {
    "cascade": {"inner_gamma": ScalarOption(4, 1, 64), "inner_rule": ChoiceOption(MATCHING, (MATCHING, REJECTION))},
    "dflash": {"stop_below": STOP_BELOW},
    "draft_model": {"stop_below": STOP_BELOW},
    "eagle": {"widths": NumberListOption("1", ScalarOption(1, 1, 64)), "stop_below": STOP_BELOW},
    "eagle2": REACH,
    "eagle3": {"dynamic": ScalarOption(default=False), **REACH, "stop_below": STOP_BELOW},
    "early_exit": {"exit_layer": ScalarOption(0), "stop_below": STOP_BELOW},
    "layer_skip": {"skip_attention": _LAYERS, "skip_ffn": _LAYERS, "stop_below": STOP_BELOW},
    "lookahead": {
        "window": ScalarOption(7, 1, 64),
        "levels": ScalarOption(5, 2, 16),
        "guesses": ScalarOption(7, 1, 64),
    },
    "medusa": {"draw": ChoiceOption("top", ("top", "soft")), "tree": NumberListOption(NO_TREE, ScalarOption(0, 0, 64))},
    "mlp_speculator": {"draw": ChoiceOption("top", ("top", "soft")), "stop_below": STOP_BELOW},
    "mtp": {"stop_below": STOP_BELOW},
    "ngram": {"min_ngram": ScalarOption(2, 1), "max_ngram": ScalarOption(4, 1)},
    "online": {
        "learn": ScalarOption(default=False),
        "update_every": ScalarOption(64, 1, 100_000),
        "learning_rate": ScalarOption(0.001, 0.0, 1.0),
        "divergence": ChoiceOption("forward", ("forward", "reverse")),
        "positions": ChoiceOption("rejected", ("rejected", "all")),
        "stop_below": STOP_BELOW,
    },
    "sequoia": {
        "rates": TextOption(
            _RATES, f'numbers such as "{_RATES}", each {RATE.wants}, with / between levels', _are_rates
        ),
        "depth": ScalarOption(6, 1, 64),
        "size": ScalarOption(0, 0, 1024),
        "shape": TextOption(
            "", 'the parent of each node, -1 for the root, parents first, such as "-1,-1,0"', _is_shape
        ),
    },
    "specinfer": {
        "widths": NumberListOption("2,1,1", ScalarOption(1, 1, 64)),
        "siblings": ChoiceOption(
            str(Siblings.WITH_REPLACEMENT), (Siblings.WITH_REPLACEMENT, Siblings.WITHOUT_REPLACEMENT)
        ),
    },
    "suffix": {
        "depth": ScalarOption(24, 1, 1024),
        "max_spec_factor": ScalarOption(1.0, 0.1, 16.0),
        "min_token_prob": ScalarOption(0.1, 0.0, 1.0),
        "cached_requests": ScalarOption(0, 0, 100_000),
        "tree": ScalarOption(default=False),
    },
}
TREES: Final = frozenset(("ddtree", "eagle2", "lookahead", "sequoia", "specinfer"))
"""Proposers that always draft trees."""
TOKEN_COST: Final = "token_cost"
OF_CHAINS: Final[Mapping[str, OptionType]] = {TOKEN_COST: ScalarOption(0.0, 0.0, 8.0)}
"""Options of the other proposers, apart from their own. `adaptive_length` shortens their drafts; 0 does not."""
_HEAD: Final = "a trained head"
NEEDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cascade", "draft_model", "online", "sequoia", "specinfer"), "a draft model"),
    **dict.fromkeys(("ddtree", "dflash", "eagle", "eagle2", "eagle3", "medusa", "mlp_speculator", "mtp"), _HEAD),
}


def read(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A proposer's own options: the given ones over its defaults.

    Raises:
        InvalidRequest: an unknown option, an invalid value, or options that exclude each other.
    """
    options = {name: value for name, value in _read(kind, given).items() if name not in OF_CHAINS}
    if kind in _TOGETHER:
        _TOGETHER[kind](given, options)
    return options


def token_cost(kind: str, given: Mapping[str, Any]) -> float:
    """The option `token_cost`; raises as `read`."""
    return float(_read(kind, given).get(TOKEN_COST, 0.0))


def _read(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {**OPTIONS.get(kind, {}), **({} if kind in TREES else OF_CHAINS)}
    return read_options(f"proposer {kind}", given, known)


def _layer_skip(_given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if not (options["skip_attention"].strip() or options["skip_ffn"].strip()):
        raise InvalidRequest(
            "proposer layer_skip: options skip_attention and skip_ffn name nothing to skip; "
            "python -m engine.tools.find_skips finds a set"
        )


def _medusa(_given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if options["tree"] != NO_TREE and options["draw"] == "soft":
        raise InvalidRequest("proposer medusa: option draw must be top with a tree, whose candidates are fixed")


def _ngram(_given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if options["min_ngram"] > options["max_ngram"]:
        raise InvalidRequest(
            f"proposer ngram: min_ngram {options['min_ngram']} is above max_ngram {options['max_ngram']}"
        )


def _sequoia(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if options["shape"]:
        others = [name for name in ("rates", "depth", "size") if name in given]
        if others:
            raise InvalidRequest(f"proposer sequoia: option shape is the whole tree; leave out {', '.join(others)}")
        return
    for level in rates_of(options["rates"]):
        if math.fsum(level) > 1 + ROUNDING:
            raise InvalidRequest(f"proposer sequoia: option rates must sum to at most 1, not {math.fsum(level):.6g}")


_TOGETHER: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], None]]] = {
    "layer_skip": _layer_skip,
    "medusa": _medusa,
    "ngram": _ngram,
    "sequoia": _sequoia,
}
"""Constraints between options: functions of the given options and of those in effect."""
