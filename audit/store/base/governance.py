"""The speculation settings of an arm as columns, read from its requested and effective configuration.

They add no evidence: the configuration is hashed, and `audit db check` compares the columns with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from audit.evidence.promises import promised
from audit.store.base.canonical import sha256_json, to_json
from engine.record.effective import Effective

PLAIN: Final = "plain"
"""Proposer of an arm that decodes without speculation."""
EXACT_RULES: Final = ("greedy", "gumbel")
"""Lossless rules whose output equals plain decoding token by token."""
BOUNDED_RULES: Final = ("ensemble",)
"""Lossy rules with a bound on the distance of the output's law from the target's."""


class ExpectedEquivalence(StrEnum):
    """The strongest equivalence with plain decoding that a configuration promises."""

    BITWISE = "bitwise"
    """The same tokens from the same bits."""
    TOKEN = "token"
    """The same tokens, except where rounding decides a near tie."""
    LAW = "law"
    """The same distribution of outputs."""
    BOUNDED = "bounded"
    """A distribution at a bounded distance."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Governance:
    """An arm's speculation settings; None where the configuration does not state a value.

    proposer_version: digest of the draft's weights, else the version of the code that proposes.
    tree: the proposer's options as JSON, if it drafts trees.
    """

    speculation: bool
    proposer: str | None
    proposer_version: str | None
    gamma: int | None
    tree: str | None
    rule: str | None
    expected_equivalence: str | None
    numerics_probe_sha256: str | None


def governance(
    spec: Mapping[str, Any], document: Mapping[str, Any], lossless: bool, packages: Mapping[str, Any]
) -> Governance:
    """The settings of an arm, from its requested configuration and the effective one as JSON.

    `lossless` says whether the arm claims to keep the target's law; `packages` are the versions of the run's packages.
    """
    effective = Effective.from_json(document)
    on = _speculates(spec, effective)
    numerics = None if effective.numerics is None else effective.numerics.facts.get("probe")
    return Governance(
        speculation=on,
        proposer=_proposer(spec, effective) if on else None,
        proposer_version=_version(effective, packages) if on else None,
        gamma=effective.gamma if on else None,
        tree=to_json(effective.facts.get("proposer_options") or {})
        if on and effective.proposer_shape == "tree"
        else None,
        rule=effective.protocol,
        expected_equivalence=_equivalence(effective, lossless).value if on else None,
        numerics_probe_sha256=None if numerics is None else sha256_json(numerics),
    )


def _speculates(spec: Mapping[str, Any], effective: Effective) -> bool:
    reported = effective.in_effect.get("speculation")
    return reported if isinstance(reported, bool) else _proposer(spec, effective) not in {None, PLAIN}


def _proposer(spec: Mapping[str, Any], effective: Effective) -> str | None:
    requested = spec.get("proposer")
    return effective.proposer or (requested if isinstance(requested, str) else None)


def _version(effective: Effective, packages: Mapping[str, Any]) -> str | None:
    """Digest of the first version of a draft that learns, of the head, or of the draft; else the code's version."""
    if effective.draft_version is not None:
        return effective.draft_version
    for key in ("head", "draft"):
        part = effective.facts.get(key)
        for name in ("model_sha256", "sha256"):
            if isinstance(part, Mapping) and isinstance(part.get(name), str):
                return str(part[name])
    package = effective.backend if effective.backend and effective.backend in packages else "specaudit"
    return f"{package} {packages[package]}" if package in packages else None


def _equivalence(effective: Effective, lossless: bool) -> ExpectedEquivalence:
    if effective.fault is not None:
        return ExpectedEquivalence.NONE
    if not lossless:
        return ExpectedEquivalence.BOUNDED if effective.protocol in BOUNDED_RULES else ExpectedEquivalence.NONE
    if effective.protocol not in EXACT_RULES:
        return ExpectedEquivalence.LAW
    return ExpectedEquivalence.BITWISE if promised(effective) else ExpectedEquivalence.TOKEN


def used_drafts(specs: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """Names of the draft models that arms with these specifications used; None if one does not say."""
    listed = list(specs)
    if any("draft" not in spec for spec in listed):
        return None
    names = (name for spec in listed for name in (spec["draft"], *spec.get("other_drafts", ())))
    return frozenset(name for name in names if name)
