"""One request as arrays per step and per emitted token, from its record alone.

The view knows nothing about text: a situation that depends on where a token's
characters begin cannot be recognised from it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import RequestRecord
from engine.core.trees import levels
from engine.core.types import Floats, Role, SamplingParams
from engine.record.columns import entries_before, numbered
from engine.record.trace import Trace

Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """Facts about drafts in an arm's configuration."""

    gamma: int | None
    """Longest draft; None if unbounded or unknown."""
    tree: bool
    batch: int | None
    """Rows of the batch; None if unknown."""
    speculates: bool


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Per step of one request, what the other rows of its batch did; [S] each."""

    reused: bool | None
    """True if another request left the row that this one took; None if rows are unknown."""
    joined: Mask
    """Another request was admitted in the step's round."""
    left: Mask | None
    """Another request, which had begun, was withdrawn before the step's round; None if that is unknown."""
    finished: Mask
    """This request ended in the step's round, and so did another one."""
    lengths: Mask
    """Another row had a context of another length."""
    drafts: Mask
    """Another row had a draft of another length."""
    parameters: Mask | None
    """Another row had other sampling parameters; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request: S steps, E emitted tokens."""

    request: RequestRecord
    trace: Trace
    arm: ArmFacts
    batch: BatchFacts | None
    """None if the record does not say which rounds the request ran in, or the neighbours are not read yet."""
    shared_prefix: bool
    first: Counts
    """[S] index of each step's first emitted token."""
    drafted: Counts
    emitted: Counts
    accepted: Counts
    """[S] emitted tokens that were drafted."""
    step: Counts
    """[E] the step of each token."""
    place: Counts
    """[E] index of each token within its step."""

    @property
    def sampling(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.trace.header.sampling

    @property
    def prompt(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.trace.header.prompt)

    @property
    def tokens(self) -> int:
        """Number of emitted tokens."""
        return len(self.step)

    def nothing(self) -> Mask:
        """[E] false everywhere."""
        return np.zeros(self.tokens, np.bool_)

    def at_first(self, steps: Mask) -> Mask:
        """[E] the first token of each selected step."""
        return np.asarray((self.place == 0) & steps[self.step])

    def at_last(self, steps: Mask) -> Mask:
        """[E] the last token of each selected step."""
        return np.asarray((self.place == self.emitted[self.step] - 1) & steps[self.step])

    def once(self, happened: bool) -> Mask:
        """[E] the request's first token, for a situation of the whole request."""
        mask = self.nothing()
        mask[:1] = happened
        return mask

    def after(self, steps: Mask) -> Mask:
        """[E] the first token of the step after each selected step."""
        following = np.zeros(len(steps), np.bool_)
        following[1:] = steps[:-1]
        return self.at_first(following)

    def role(self, role: Role) -> Mask:
        """[E] the tokens of a role."""
        return np.asarray(self.trace.role == role)

    def steps_with(self, role: Role) -> Mask:
        """[S] the steps that emitted a token of a role."""
        mask = np.zeros(len(self.emitted), np.bool_)
        mask[self.step[self.role(role)]] = True
        return mask


def view_of(request: RequestRecord, arm: ArmFacts, *, shared_prefix: bool) -> RequestView:
    """Arrange a request's record; a request without steps gives empty arrays."""
    trace = request.trace
    emitted = trace.n_emitted.astype(np.int64)
    tokens = numbered(emitted)
    is_accepted = np.asarray(trace.role == Role.ACCEPTED, dtype=np.float64)
    return RequestView(
        request=request,
        trace=trace,
        arm=arm,
        batch=None,
        shared_prefix=shared_prefix,
        first=entries_before(emitted),
        drafted=trace.n_drafted.astype(np.int64),
        emitted=emitted,
        accepted=np.bincount(tokens.step, weights=is_accepted, minlength=len(emitted)).astype(np.int64),
        step=tokens.step,
        place=tokens.local,
    )


def draft_depths(view: RequestView) -> Counts:
    """[S] the deepest node of each step's draft, from 1; 0 without a draft. A chain's depth is its length."""
    return tree_depths(view.trace) if view.arm.tree else view.drafted


def tree_depths(trace: Trace) -> Counts:
    """[S] the deepest node of each step's tree, from 1; 0 without a draft."""
    ends = np.cumsum(trace.n_drafted.astype(np.int64)).tolist()
    parents = trace.node_parent.tolist()
    deepest = [max(levels(parents[start:end]), default=0) for start, end in zip([0, *ends], ends, strict=False)]
    return np.array(deepest, dtype=np.int64)


def known(column: Floats, view: RequestView) -> bool:
    """True if a column with one value per emitted token was recorded."""
    return len(column) == view.tokens
