"""The precision in which an engine computes, as its record states it, and how far rounding goes in it."""

from collections.abc import Mapping
from typing import Final

from audit.evidence.verdicts import Params
from engine.core.types import Floats
from engine.record.effective import Effective

HALF: Final = ("bfloat16", "float16")


def is_half(model: object) -> bool:
    """True if the facts of a model name a type of 16 bits."""
    return isinstance(model, Mapping) and model.get("dtype") in HALF


def beyond_rounding(distances: Floats, effective: Effective, params: Params, unit: str) -> str:
    """Says that plain decoding is further from the reference than rounding; empty if it is not.

    In 16 bits the mean of the [n] distances counts: rounding alone moves single rows by a quarter of all probability.
    """
    # by the engine's own report, or else by the facts of the target's files
    half = is_half(effective.in_effect if "dtype" in effective.in_effect else effective.facts.get("target"))
    name = "half_noise" if half else "most_noise"
    of, distance = ("on average", distances.mean) if half else ("up to", distances.max)
    if not len(distances) or float(distance()) <= float(params[name]):
        return ""
    return (
        f"plain decoding itself is {of} {float(distance()):.2g} {unit} from the reference: more than rounding, for "
        f"which {name} allows {params[name]:g}; the engine runs another model, or computes in a lower precision than "
        f"it states, for which the suite has to raise {name} of this check"
    )
