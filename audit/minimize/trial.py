"""Trials of suites of one arm: whether the verdict stays.

Every trial is a run through the arm's backend in memory. The first trial with the verdict shows whether the check needs
only the candidate; if so, later trials omit baseline, control and companions. No trial begins beyond the limits.

A long search would find a set of requests that fails a test by luck. If the verdict comes from a test, trial k
therefore draws fresh random numbers and gets the share 6 / (pi^2 k^2) of the error probability, as an interim look
would.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from audit.checks.base.interface import Check, evaluate
from audit.evidence.records import ArmRecord, Evidence
from audit.evidence.verdicts import CheckResult, Verdict
from audit.minimize.suite_writer import document_of, files_of
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
    """Limits of a search. The last trial may exceed `tokens`, which counts the output of all arms.

    fresh: engines of other programs are started anew for every trial, so that none sees what an earlier trial left.
    """

    trials: int
    tokens: int
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """The check that must find a fault; `by_chance` is True if its verdict comes from a test with a p-value above 0."""

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
        """The error of the last trial; None if it ran."""

    @property
    def cut_short(self) -> bool:
        """True if a limit prevented a trial."""
        return self._refused

    def stays(self, suite: Suite, what: str, again: bool = False) -> bool:
        """True if the suite, which has one arm, gives the verdict; False without a trial once a limit is reached.

        `what` is the difference, for progress messages; `again` is for the run's own arm, judged as the run judged it.
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
        self._known[key] = result = self._tried(self.as_tried(suite), InterimLook(self.count) if fresh else None)
        outcome = "stays" if result else "gone" if self.last_problem is None else f"cannot run ({self.last_problem})"
        self._note(f"trial {self.count}: {what}: {outcome}")
        return result

    def as_tried(self, suite: Suite) -> Suite:
        """The suite with the seed of its trial."""
        return replace(suite, seed=self._seeds[_key(suite)])

    def prompt_of(self, suite: Suite, case_id: str) -> tuple[int, ...]:
        """A case's tokens, as the backend encodes them."""
        requests = candidate_of(build_arms(suite, self._workshop)).requests
        return next(request.prompt for key, request in requests.items() if key.case_id == case_id)

    def _tried(self, suite: Suite, look: InterimLook | None) -> bool:
        self.last_problem = None
        if self._limits.fresh:
            getattr(self._workshop, "close", lambda: None)()
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
            result = evaluate(self._check, Evidence(done[candidate.planned.name]), params)
            if self._alone or result.verdict is Verdict.FAULT:
                self._alone = True
                return result
        for arm in arms:
            if arm is not candidate:
                done[arm.planned.name] = self._ran(arm, done)
        result = evaluate(self._check, evidence_of(arms, done), params)
        if result.verdict is Verdict.FAULT:
            self._alone = False
        return result

    def _ran(self, arm: PreparedArm, done: dict[str, ArmRecord]) -> ArmRecord:
        record = run_arm(arm, done)
        self.tokens += sum(len(request.tokens) for request in record.requests)
        return record


def _key(suite: Suite) -> str:
    """Equal suites have equal files."""
    return json.dumps([document_of(suite), [content.decode() for content in files_of(suite).values()]])
