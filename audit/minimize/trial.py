"""Trials of suites of one arm: whether the verdict stays.

Every trial is a run through the arm's backend in memory. The first one that
gets the verdict shows whether the check needs anything but the candidate; if
not, baseline, control and companions are left out from then on. Trials are
counted, and none begins beyond the limits.

Whoever searches long enough finds a set of requests that fails a test by luck.
Where the verdict is a test's, trial k therefore draws fresh random numbers, and
gets the share 6 / (pi^2 k^2) of the error probability that a look at a growing
run would get. Knows nothing about what is changed from one to the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from audit.checks.interface import Check, evaluate
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import CheckResult, Verdict
from audit.minimize.written import document_of, files_of
from audit.runs.in_memory import candidate_of, evidence_of, run_arm
from audit.runs.interim_looks import InterimLook, at_interim_look
from audit.runs.prepare import PreparedArm, build_arms
from audit.suite.spec import Suite
from engine.backends.engine_spec import Backend
from engine.core.errors import EngineError

SEEDS: Final = 2**63
"""A suite's seed is below this."""


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """How much may be tried. The last trial may pass `tokens`, which counts what all arms emit."""

    trials: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Goal:
    """The check that must find a fault; `by_chance`: its verdict is a test's, which has a p-value above 0."""

    check: Check
    by_chance: bool = False


class Trials:
    """Trials of one check over one set of models."""

    def __init__(self, backend: Backend, goal: Goal, limits: TrialLimits, note: Callable[[str], None]) -> None:
        self._workshop = backend
        self._check = goal.check
        self._by_chance = goal.by_chance
        self._limits = limits
        self._note = note
        self._known: dict[str, bool] = {}
        self._seeds: dict[str, int] = {}
        self._alone: bool | None = None
        self._refused = False
        self.count = 0
        self.tokens = 0
        self.last_problem: str | None = None
        """Why the last trial could not be run; None if it could."""

    @property
    def cut_short(self) -> bool:
        """A limit kept something from being tried."""
        return self._refused

    def stays(self, suite: Suite, what: str, again: bool = False) -> bool:
        """Whether the suite gets the verdict; False without a trial once a limit is reached.

        Args:
            suite: of one arm.
            what: how it differs, for the reader of the progress.
            again: it is the run's own arm, judged once more as the run judged it.
        """
        key = _key(suite)
        if key in self._known:
            return self._known[key]
        if self.count >= self._limits.trials or self.tokens >= self._limits.tokens:
            self._refused = True
            return False
        self.count += 1
        fresh = self._by_chance and not again
        self._seeds[key] = (suite.seed + (self.count - 1 if fresh else 0)) % SEEDS
        self._known[key] = found = self._tried(self.as_tried(suite), InterimLook(self.count) if fresh else None)
        said = "stays" if found else "gone" if self.last_problem is None else f"cannot be run ({self.last_problem})"
        self._note(f"trial {self.count}: {what}: {said}")
        return found

    def as_tried(self, suite: Suite) -> Suite:
        """The suite with the seed of its trial."""
        return replace(suite, seed=self._seeds[_key(suite)])

    def prompt_of(self, suite: Suite, case_id: str) -> tuple[int, ...]:
        """A case's tokens, as the backend encodes them."""
        requests = candidate_of(build_arms(suite, self._workshop)).requests
        return next(request.prompt for key, request in requests.items() if key.case_id == case_id)

    def _tried(self, suite: Suite, look: InterimLook | None) -> bool:
        self.last_problem = None
        try:
            return self._result(suite, look).verdict is Verdict.FAULT
        except EngineError as error:
            self.last_problem = str(error)
            return False

    def _result(self, suite: Suite, look: InterimLook | None) -> CheckResult:
        arms = build_arms(suite, self._workshop)
        params = at_interim_look(self._check, suite.arms[0].checks[self._check.name], look)
        candidate = candidate_of(arms)
        done = {candidate.planned.name: self._ran(candidate, {})}
        if self._alone is not False:
            found = evaluate(self._check, Evidence(done[candidate.planned.name]), params)
            if self._alone or found.verdict is Verdict.FAULT:
                self._alone = True
                return found
        for arm in arms:
            if arm is not candidate:
                done[arm.planned.name] = self._ran(arm, done)
        found = evaluate(self._check, evidence_of(arms, done), params)
        if found.verdict is Verdict.FAULT:
            self._alone = False
        return found

    def _ran(self, arm: PreparedArm, done: dict[str, ArmRecord]) -> ArmRecord:
        record = run_arm(arm, done)
        self.tokens += sum(len(each.tokens) for each in record.requests)
        return record


def _key(suite: Suite) -> str:
    """Equal suites have equal files."""
    return json.dumps([document_of(suite), [content.decode() for content in files_of(suite).values()]])
