"""Which numerics mode a model gets: the requested one if its probe passes, or with `auto` the strongest that passes.

A mode that is requested by name and fails is refused, never replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.core.errors import InvalidRequest, ModelError, NumericsRefused
from engine.models.interface import TargetModel
from engine.models.numerics import AUTO, DRAFTING, FOREIGN, PREFERENCE, REGISTRY, SWIFTEST, load
from engine.models.numerics.interface import Affine, Invariance, Numerics
from engine.models.probe.model_parts import ModelParts
from engine.models.probe.probe import ProbeReport, probe

UNPROBED: Final = "its bits decide drafts only, so nothing was probed"
REQUESTS: Final = (AUTO, *REGISTRY)
"""The modes that a request may name."""


@dataclass(frozen=True, slots=True)
class NumericsFacts:
    """A model's arithmetic and the reason for it.

    reason: why it differs from the mode that `requested` names or prefers; None if it does not.
    probe: of the mode that runs; None if nothing could be probed.
    refused: reports of the preferred modes that failed.
    most_tree_nodes: the mode's limit (`engine.models.numerics.interface.Numerics`).
    """

    mode: str
    requested: str
    promises: Invariance
    reason: str | None = None
    probe: ProbeReport | None = None
    refused: tuple[ProbeReport, ...] = ()
    most_tree_nodes: int | None = None

    def facts(self) -> Mapping[str, Any]:
        """Mode, request and promise as JSON."""
        return {"mode": self.mode, "requested": self.requested, "promises": self.promises.name.lower()}

    def full_facts(self) -> Mapping[str, Any]:
        """Everything, reports included, as JSON; without times."""
        return {
            **self.facts(),
            "reason": self.reason,
            "probe": None if self.probe is None else self.probe.facts(),
            "refused": [item.facts() for item in self.refused],
        }


@dataclass(frozen=True, slots=True)
class NumericsChoice:
    """A mode, ready to be given to a model."""

    numerics: Numerics
    facts: NumericsFacts


@dataclass(frozen=True, slots=True)
class ModelWithNumerics:
    """A model and the arithmetic that it runs with."""

    model: TargetModel
    numerics: NumericsFacts


def require_known(requested: str, where: str) -> None:
    """Refuse an unknown mode. Raises InvalidRequest: the message names the known modes."""
    if requested not in (*REQUESTS, DRAFTING):
        raise InvalidRequest(f"{where}: numerics {requested!r} is not one of {', '.join(REQUESTS)}")


def choose(requested: str, parts: ModelParts, where: str) -> NumericsChoice:
    """The mode for a model, probed.

    Args:
        requested: a registered mode, `auto` for the first of `PREFERENCE` whose probe passes, or `drafting` for the
            first of `SWIFTEST` that exists here.
        parts: of the model.
        where: the model's name in messages.

    Raises:
        InvalidRequest: an unknown mode.
        NumericsRefused: the requested mode does not keep its promise here.
    """
    require_known(requested, where)
    if requested == AUTO:
        return _first_that_holds(parts)
    if requested == DRAFTING:
        return _swiftest(parts)
    mode = load(requested)
    report = probe(parts, mode)
    if not report.passed:
        raise NumericsRefused(
            f"{where}: numerics {requested} is refused, for this machine does not keep its promise in {report.dtype} "
            f"with {_counted(report.threads)}: {_failure(report)}; use numerics: auto, or another mode"
        )
    return NumericsChoice(
        mode, NumericsFacts(mode.name, requested, mode.promises, None, report, (), mode.most_tree_nodes)
    )


def _first_that_holds(parts: ModelParts) -> NumericsChoice:
    failed: list[ProbeReport] = []
    for name in PREFERENCE:
        mode = load(name)
        report = probe(parts, mode)
        if report.passed:
            reason = "; ".join(f"{item.mode} fails {_failure(item)}" for item in failed) or None
            return NumericsChoice(
                mode, NumericsFacts(name, AUTO, mode.promises, reason, report, tuple(failed), mode.most_tree_nodes)
            )
        failed.append(report)
    raise NumericsRefused(f"numerics auto: {_failure(failed[-1])}; no mode of {', '.join(PREFERENCE)} holds here")


def _swiftest(parts: ModelParts) -> NumericsChoice:
    """The fastest mode that has a product for the model; nothing is probed, so nothing is promised."""
    row = Affine(next(iter(parts.affines.values())).weight[:1], None)
    name = next((item for item in SWIFTEST[:-1] if _multiplies(item, row)), SWIFTEST[-1])
    return NumericsChoice(load(name), NumericsFacts(name, DRAFTING, Invariance.NONE, UNPROBED))


def _multiplies(name: str, affine: Affine) -> bool:
    """True if the mode has a product for weights of this type and device."""
    try:
        load(name).matrix(affine)
    except ModelError:
        return False
    return True


def foreign(requested: str, where: str) -> NumericsFacts:
    """The facts of a transformers model, which computes as transformers does.

    Raises:
        InvalidRequest: a mode that only the lean forward has.
    """
    require_known(requested, where)
    if requested not in FOREIGN:
        raise InvalidRequest(f"{where}: loader hf has no numerics {requested}; use loader: lean, or numerics: fast")
    reason = "loader hf runs the arithmetic of transformers, which promises nothing; use loader: lean"
    return NumericsFacts("fast", requested, Invariance.NONE, reason)


def scripted() -> NumericsFacts:
    """The facts of a scripted model: logits are looked up by prefix and do not depend on the placement."""
    return NumericsFacts("scripted", "scripted", Invariance.TREE, "logits are looked up by prefix, not computed")


def _failure(report: ProbeReport) -> str:
    failure = report.failure
    return "nothing" if failure is None else f"{failure.name} ({failure.detail})"


def _counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
