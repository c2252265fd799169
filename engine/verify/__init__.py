"""Verification rules, one file each; the lossy ones together in `engine.verify.lossy`.

A rule is added by one file and one line in `engine.core.registry.VERIFIERS`, and one in `SETTINGS` if it has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from engine.core.options import ScalarOption, read_options
from engine.core.registry import VERIFIERS, resolve
from engine.core.types import Protocol

if TYPE_CHECKING:
    from engine.verify.interface import Verifier

REGISTRY: Final = VERIFIERS
SETTINGS: Final[Mapping[str, Mapping[str, ScalarOption]]] = {
    "typical": {"epsilon": ScalarOption(0.09, high=1), "delta": ScalarOption(0.3)},
    "threshold": {"threshold_single": ScalarOption(1.0, high=1), "threshold_acc": ScalarOption(1.0, high=1)},
    "ensemble": {"weight": ScalarOption(0.9, high=1)},
    "synthetic": {"length": ScalarOption(2.0, low=1)},
}
"""The options of each rule that has any; a rule is built with all of its options."""


def load(protocol: Protocol, options: Mapping[str, Any] | None = None) -> Verifier:
    """The verifier of a protocol with the given options, the others at their defaults.

    Raises:
        InvalidRequest: an option that the rule does not have, or a value that it does not take.
    """
    settings = read_options(f"verifier {protocol}", options or {}, SETTINGS.get(protocol, {}))
    verifier: Verifier = resolve(REGISTRY, protocol, "verifier")(**settings)
    return verifier
