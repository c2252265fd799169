"""Drafting again: the proposer's drafts along a recorded response, step by step.

One request in a loop of its own: a fresh proposer, one row, no neighbours and no earlier request. Each step proposes
anew after the recorded history, token by token along the recorded draft (`engine.decode.redraws`); the loop then goes
on with the recorded draft and the recorded decision, whatever was proposed. Random numbers are keyed by position, so a
sound proposer repeats its drafts up to rounding, and the fact `parted` lists every node at which it does not. The pass
shares the proposer's and the models' code with decoding, hence their faults; it shares neither the batch, nor what
another request or an earlier step left in a cache. The target runs only for proposers that read it; for the others its
rows are NaN on record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from engine.constraints.compiled import Grammars
from engine.core import types
from engine.decode.loop import Loop, LoopOptions
from engine.decode.redraws import OwnDraft, Redraws
from engine.decode.seams import EngineParts
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs
from engine.proposers.interface import Context, Proposer, WrappedProposer
from engine.record.trace import PARTED, StepView, Trace, decode, encode, steps_of
from engine.sampling.rng import Randomness
from engine.sampling.stopping import Decode, StopRule, TruncatedOutcome
from engine.sampling.transforms import TargetRows
from engine.verify.interface import VerifierFacts

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a record: the draft, and the decision on it."""

    tree: types.Tree
    outcome: types.StepOutcome


def recorded_steps(trace: Trace) -> tuple[RecordedStep, ...]:
    """The steps of a trace in order, up to the first that contradicts itself, which no loop could follow."""
    steps = []
    for view in steps_of(trace):
        step = _recorded(trace, view)
        if not _consistent(step):
            break
        steps.append(step)
    return tuple(steps)


def _recorded(trace: Trace, view: StepView) -> RecordedStep:
    nodes, kept = (column[view.examined].tolist() for column in (trace.examined_node, trace.examined_accepted))
    tokens, roles, rows = (column[view.emitted].tolist() for column in (trace.token, trace.role, trace.row))
    return RecordedStep(
        view.tree,
        types.StepOutcome(
            tuple(
                types.Emitted(token, types.Role(role), row, NAN)
                for token, role, row in zip(tokens, roles, rows, strict=True)
            ),
            tuple(types.Examined(node, NAN, NAN, NAN, bool(was)) for node, was in zip(nodes, kept, strict=True)),
        ),
    )


def _consistent(step: RecordedStep) -> bool:
    """True if the decision names nodes and rows that exist, and the accepted tokens are those of a path."""
    size, outcome = len(step.tree), step.outcome
    path = [item.node for item in outcome.examined if item.accepted]
    nodes = [item.node for item in outcome.examined]
    parents = [-1, *path]
    exist = all(0 <= node < size for node in nodes) and all(0 <= item.row <= size for item in outcome.emitted)
    ordered = all(-1 <= parent < node for node, parent in enumerate(step.tree.parents))
    return (
        bool(outcome.emitted)
        and exist
        and ordered
        and all(step.tree.parents[node] == parent for node, parent in zip(path, parents, strict=False))
        and [step.tree.tokens[node] for node in path] == [item.token for item in outcome.emitted[: len(path)]]
    )


class _Followed(WrappedProposer):
    """Proposes anew and hands the loop the recorded drafts; `made` is the newest own draft, `parted` a fact's value."""

    def __init__(self, inner: Proposer, redraws: Redraws, steps: Sequence[RecordedStep]) -> None:
        super().__init__(inner)
        self._redraws, self._drafts = redraws, iter(steps)
        self.made = OwnDraft(types.Proposal(), ())
        self.parted: list[tuple[int, int, float | None]] = []

    def propose(self, contexts: Sequence[Context]) -> Sequence[types.Proposal]:
        """The recorded draft; what the target reads beside it is the inner proposer's."""
        recorded = next(self._drafts).tree
        self._redraws.begin(recorded, contexts[0])
        (along,) = self._inner.propose(contexts)
        self.made = self._redraws.own(along)
        return [types.Proposal(recorded, lookahead_tokens=along.lookahead_tokens)]

    def as_made(self, _request: types.Request, record: types.StepRecord) -> types.StepRecord:
        """The step with the proposer's own draft, every node of it examined and none accepted."""
        made = self.made.proposal
        self.parted += ((record.step, node, lead if np.isfinite(lead) else None) for node, lead in self.made.leads)
        chances = [NAN] * len(made.tree)
        if made.q_kind is types.QKind.FULL and made.q is not None:
            chances = [float(row[token]) for row, token in zip(made.q, made.tree.tokens, strict=True)]
        examined = tuple(types.Examined(node, NAN, q, NAN, accepted=False) for node, q in enumerate(chances))
        verdict = types.StepOutcome(record.verdict.emitted, examined)
        rows = record.logits if self.facts.reads_target else np.full_like(record.logits, NAN)
        scores = record.scores if self.facts.reads_target else None
        return replace(
            record, proposal=made, verdict=verdict, logits=rows, scores=scores, spare=None, spare_allowed=None
        )


class _Decided:
    """A verifier that repeats recorded decisions. Its record holds no spare rows, so it never names the block rule."""

    def __init__(self, facts: VerifierFacts, steps: Sequence[RecordedStep]) -> None:
        self.facts = replace(facts, protocol=types.Protocol.CHAIN) if facts.protocol is types.Protocol.BLOCK else facts
        self._outcomes = iter(steps)

    def verify(self, proposal: types.Proposal, rows: TargetRows, randomness: Randomness) -> types.StepOutcome:
        """The next recorded decision."""
        del proposal, rows, randomness
        return next(self._outcomes).outcome


@dataclass(frozen=True, slots=True)
class _RecordedEnd(StopRule):
    """Ends the request after its recorded tokens, for no reason of its own."""

    length: int = 0

    def cut(self, generated: Sequence[int], verdict: types.StepOutcome) -> TruncatedOutcome:
        """The whole decision."""
        ended = len(generated) + len(verdict.emitted) >= self.length
        return TruncatedOutcome(verdict, types.FinishReason.LENGTH if ended else None)


class _Unread:
    """Stands in for a target that nothing reads: its logits are 0, which every sampling parameter accepts."""

    def __init__(self, target: TargetModel) -> None:
        self.vocabulary, self.context, self.divisible = target.vocabulary, target.context, target.divisible
        self.eos_ids, self.facts, self.new_cache = target.eos_ids, target.facts, target.new_cache

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """Zeros."""
        del cache
        return Forward(torch.zeros((*placement.tokens.shape, self.vocabulary)) if want.logits else None, {})


@dataclass(frozen=True, slots=True)
class Redrafter:
    """Everything that drafts again: sound parts, and the loop's options for one row."""

    target: TargetModel
    proposer: Proposer
    parts: EngineParts
    cache: SlotCache
    options: LoopOptions
    decode: Decode
    grammars: Grammars | None = None
    redraws: Redraws = field(default_factory=Redraws)
    """Those that the proposer draws with."""

    def run(self, request: types.Request, steps: Sequence[RecordedStep]) -> types.Generation | None:
        """The request's record with the drafts made anew and the recorded decisions; None without steps."""
        if not steps:
            return None
        length = sum(len(step.outcome.emitted) for step in steps)
        followed = _Followed(self.proposer, self.redraws, steps)
        parts = replace(
            self.parts,
            stops=lambda sampling, eos, decode: _RecordedEnd(sampling, eos, decode, length),
            record=followed.as_made,
        )
        decided = _Decided(self.parts.verifier.facts, steps)
        target = self.target if self.proposer.facts.reads_target else _Unread(self.target)
        loop = Loop(target, followed, decided, self.decode, self.options, self.cache, parts, grammars=self.grammars)
        (generation,) = loop.run([request])
        if not followed.parted:
            return generation
        trace = decode(generation.trace)
        facts = {**trace.header.facts, PARTED: [list(item) for item in followed.parted]}
        return replace(generation, trace=encode(replace(trace, header=replace(trace.header, facts=facts))))
