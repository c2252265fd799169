"""A draft model that learns from the target while serving (Liu et al., Online Speculative Decoding, 2310.07177).

With `learn` off it is `draft_model`. With it, the target's rows at positions that were decided are collected, and after
`update_every` of them the draft takes one step towards the target. An update happens at the beginning of `propose`, for
all rows at once: the draft's cache is then rebuilt, so that q always belongs to one version, which every proposal
names.

Why this is lossless. q at a position must not depend on a random number that is still to be used there. A draft's
numbers are keyed by position, and a step also draws tokens behind the one that is refused, whose numbers the next step
uses again. So only rows that decided an emitted token are collected: their contexts are committed, and what is learnt
is a function of numbers at committed positions. The proposer never reads dropped tokens or the target's rows after
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core import versions
from engine.core.errors import ModelNeeded
from engine.core.types import Proposal, Role, StepOutcome
from engine.proposers.draft_model.distilling import DistillationSample, Student, student_of
from engine.proposers.draft_model.draft_model import DraftModelProposer
from engine.proposers.interface import Context, ProposerFacts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts


@dataclass(slots=True)
class _Notes:
    """The target's rows in one request that are not yet learnt."""

    history: Sequence[int]
    places: list[int] = field(default_factory=list)
    rows: list[NDArray[np.floating[Any]]] = field(default_factory=list)

    def lesson(self) -> DistillationSample:
        """The collected rows as one sample."""
        return DistillationSample(tuple(self.history[: self.places[-1] + 1]), tuple(self.places), np.stack(self.rows))


class OnlineProposer:
    """`draft_model` with a student that periodically provides a new model; None disables learning."""

    def __init__(self, parts: ProposerParts, draft: DraftModelProposer, student: Student | None) -> None:
        options = read("online", parts.options)
        self._draft = draft
        self._student = student
        self._every = options["update_every"]
        self._rejected_only = options["positions"] == "rejected"
        self._notes: dict[int, _Notes] = {}
        self._closed: list[_Notes] = []
        self._collected = 0
        self._version = versions.first(student.digest()) if student else None
        self.facts = ProposerFacts(
            "online",
            state="shared" if student else "request",
            decided=student is not None,
            version=self._version,
            options=options,
            steady=draft.facts.steady,
            reads_target=student is not None,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> OnlineProposer:
        """From a draft model and its options.

        Raises:
            InvalidRequest: an unknown option, no draft model, or one that cannot learn.
        """
        options = read("online", parts.options)
        if parts.draft is None:
            raise ModelNeeded("proposer online needs a draft model")
        draft = DraftModelProposer(parts, parts.draft, options["stop_below"])
        rate, divergence = options["learning_rate"], options["divergence"]
        return cls(parts, draft, student_of(parts.draft, rate, divergence) if options["learn"] else None)

    def start(self, context: Context) -> None:
        """Read the prompt with the current draft."""
        self._close(context.row)
        self._draft.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Learn if enough is collected, then draft; every proposal names the version, an empty one too."""
        if self._student and self._collected >= self._every:
            self._update(self._student, contexts)
        drafted = self._draft.propose(contexts)
        return [replace(item, version=self._version) for item in drafted] if self._version else drafted

    def _update(self, student: Student, contexts: Sequence[Context]) -> None:
        noted = [note for note in (*self._closed, *self._notes.values()) if note.places]
        lessons = [item.lesson() for item in noted]
        self._draft.replace_model(student.learn(lessons), contexts)
        assert self._version is not None
        self._version = versions.after(self._version, _update_digest(lessons, student.digest()))
        self._closed, self._notes, self._collected = [], {}, 0

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Collect the rows of decided positions."""
        self._draft.observe(context, verdict)
        if context.read.decided is None:
            return
        notes = self._notes.setdefault(context.row, _Notes(context.history))
        first = len(context.history) - len(verdict.emitted)
        for index, emitted in enumerate(verdict.emitted):
            if emitted.role is Role.RECOVERED or not self._rejected_only:
                notes.places.append(first + index - 1)
                notes.rows.append(context.read.decided[index])
                self._collected += 1

    def finish(self, row: int) -> None:
        """Forget the row, but keep the rows collected in it."""
        self._close(row)
        self._draft.finish(row)

    def _close(self, row: int) -> None:
        if row in self._notes:
            self._closed.append(self._notes.pop(row))


def _update_digest(lessons: Sequence[DistillationSample], weights: str) -> str:
    """Hex SHA-256 of each lesson's tokens and places with their counts, as 64-bit integers, its rows as float32,
    little-endian all, and of the digest of the weights that came of it.
    """
    digest = hashlib.sha256()
    for lesson in lessons:
        counted = [len(lesson.tokens), *lesson.tokens, len(lesson.places), *lesson.places]
        digest.update(np.array(counted, dtype="<i8").tobytes())
        digest.update(lesson.rows.astype("<f4").tobytes())
    digest.update(bytes.fromhex(weights))
    return digest.hexdigest()
