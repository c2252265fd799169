"""How often a check must examine the situations of its claim before it may certify an arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.count import ArmCoverage, steps_known
from audit.evidence.coverage.groups import Group
from audit.evidence.records import ArmRecord
from audit.evidence.verdicts import CheckResult, Verdict
from engine.core.types import SamplingParams

LEAST = 10
"""Default number of examined occurrences: with none wrong, at most 26 % are, with 95 % confidence."""
CORE = ("recovered_token", "bonus_token", "after_rejection", "after_kept_whole")
"""Every arm that speculates rejects drafts, keeps some whole, and goes on after both."""
NOTHING_ACCEPTED = "no drafted token was accepted, so the run shows nothing about speculation; use a better draft"


@dataclass(frozen=True, slots=True)
class CoverageRule:
    """A suite's demand: `least` examined occurrences of each expected situation that is not in `waive`."""

    least: int = LEAST
    waive: tuple[str, ...] = ()


DEFAULT_FLOORS = CoverageRule()


def expected(arm: ArmRecord, coverage: ArmCoverage) -> tuple[str, ...]:
    """The situations that the arm's own settings make possible, in the catalogue's order.

    Situations that the record cannot show are left out.
    """
    if not steps_known(arm):
        return ()
    sampling = arm.requests[0].trace.header.sampling if len(arm.requests) else None
    wanted = {*CORE, *_by_batch(arm), *(_by_parameters(sampling) if sampling is not None else ())}
    if arm.effective.proposer_shape == "tree":
        wanted.add("tree_branch")
    return tuple(name for name in CATALOGUE if name in wanted and name in coverage.occurred)


def _by_batch(arm: ArmRecord) -> Iterator[str]:
    yield "row_reused"
    if (arm.effective.rows or 1) > 1:
        yield "mixed_lengths"
    if arm.effective.beside is not None or arm.effective.mixed is not None:
        yield "mixed_parameters"


def _by_parameters(sampling: SamplingParams) -> Iterator[str]:
    if sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
        yield "penalty_in_draft"
    if sampling.logit_bias or sampling.bad_words:
        yield "ban_in_draft"
    if sampling.min_tokens > 1:
        yield "min_tokens_in_draft"
    if sampling.stop:
        yield "stop_string_in_draft"


def held_back(
    result: CheckResult, covers: frozenset[Group], examined: Mapping[str, int], floors: Mapping[str, int]
) -> CheckResult:
    """The result, `inconclusive` instead of `certified` if the check examined a covered situation too rarely."""
    if result.verdict is not Verdict.CERTIFIED:
        return result
    short = {
        name: examined[name]
        for name, least in floors.items()
        if CATALOGUE[name].group in covers and examined[name] < least
    }
    if not short:
        return result
    counts = ", ".join(f"{name} {count} of {floors[name]}" for name, count in short.items())
    remedies = "; ".join(dict.fromkeys(CATALOGUE[name].remedy for name in short))
    summary = f"examined too rarely: {counts}; to reach it, {remedies}, or waive it. So far: {result.summary}"
    return _undecided(result, summary, short)


def held_back_unaccepted(result: CheckResult, covers: frozenset[Group], coverage: ArmCoverage) -> CheckResult:
    """The result, `inconclusive` instead of `certified` if nothing was accepted and the claim is about speculation."""
    if result.verdict is not Verdict.CERTIFIED or not covers or coverage.accepted or not coverage.occurred:
        return result
    return _undecided(result, f"{NOTHING_ACCEPTED}. So far: {result.summary}", {})


def _undecided(result: CheckResult, summary: str, short: Mapping[str, int]) -> CheckResult:
    details = {**result.details, "short_of": dict(short)}
    return dataclasses.replace(result, verdict=Verdict.INCONCLUSIVE, summary=summary, details=details)


def needed(arm: ArmRecord, coverage: ArmCoverage, rule: CoverageRule) -> Mapping[str, int]:
    """Least examined occurrences by expected situation, without waived ones."""
    return {name: rule.least for name in expected(arm, coverage) if name not in rule.waive and rule.least}
