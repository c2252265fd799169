"""The decoding loop: propose, verify, commit. Plain decoding is the same loop with empty proposals.

Batch-first: requests join and leave between steps, each row accepts as many tokens as it can, and a row's random
numbers depend only on its request.

The second account of a finished answer's masks stands apart from those that decided its tokens: a fresh constraint
reads the emitted tokens once, from first to last, so nothing is rolled back and no state can be that of a rejected
token or of another row. It shares the library and the compiled grammar with decoding, hence their faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from engine.constraints.compiled import Grammars
from engine.core.errors import NoTokenLeft
from engine.core.trees import side_by_side
from engine.core.types import (
    DraftRule,
    FinishReason,
    Generation,
    Mask,
    Proposal,
    RecordLevel,
    Request,
    SamplingParams,
    StepOutcome,
    StepRecord,
    Timing,
)
from engine.decode.arrivals import Arrivals, CommittedStep, ListedRequests, Withdrawal
from engine.decode.batch_facts import BatchPlace, BatchRounds
from engine.decode.call_reader import is_read, offer_facts
from engine.decode.row_state import DraftMasks, RowState
from engine.decode.seams import LoopParts
from engine.models.interface import (
    Forward,
    Placed,
    SlotCache,
    TargetModel,
    WantedOutputs,
    chain_placement,
    place,
    to_numpy,
)
from engine.proposers.interface import NOTHING_READ, Context, Proposer, TargetOutputs, require_fits
from engine.record.facts import CONSTRAINT
from engine.record.recorder import Recorder
from engine.record.rows.row_digests import second_masks
from engine.record.tool_calls import ResponseTemplate
from engine.record.trace import TraceHeader
from engine.record.writer import RecordWriter
from engine.sampling.stopping import Decode, StopRule
from engine.sampling.transforms import MaskOf, TargetRows
from engine.stream.fresh_reading import has_model, read_afresh
from engine.stream.holding import whole
from engine.stream.text_stream import StreamRules, stream_facts
from engine.verify.interface import Verifier


def account_of_masks(
    grammars: Grammars, sampling: SamplingParams, tokens: Sequence[int], decode: Decode
) -> Mapping[str, Any]:
    """The facts of an answer under a grammar: the library, its masks, and the text before an end token."""
    spec, masks = sampling.structured, grammars.constraint(sampling)
    assert spec is not None
    assert masks is not None
    rows = np.stack([masks(tokens[:at]) for at in range(len(tokens))])
    again = second_masks(rows, tokens, (*grammars.eos_ids, *sampling.stop_token_ids))
    text = decode(tokens[:-1] if again["whole"] else tokens)
    return {CONSTRAINT: {**grammars.facts(spec), **again, "text": text}}


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """`rows` requests at once, drafts of at most `gamma` nodes, `capacity` cache columns.

    Without `record` the loop records nothing at any level, and traces are empty. With `stream` it records the text as
    it leaves, through these filters.
    """

    rows: int
    gamma: int
    capacity: int
    level: RecordLevel
    record: bool = True
    stream: StreamRules | None = None


class Loop:
    """Continues requests with a target, a proposer and a verifier."""

    def __init__(
        self,
        target: TargetModel,
        proposer: Proposer,
        verifier: Verifier,
        decode: Decode,
        options: LoopOptions,
        cache: SlotCache | None = None,
        parts: LoopParts | None = None,
        template: ResponseTemplate | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._target = target
        self._proposer = proposer
        self._verifier = verifier
        self._decode = decode
        self._options = options
        self._parts = parts or LoopParts()
        self._template = template
        self._grammars = grammars
        # a proposer that drafts with the target's own keys and values has the cache before the loop
        self._cache = cache or target.new_cache(options.rows, options.capacity)
        self._want = WantedOutputs(hidden=proposer.facts.hidden)

    def run(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Yield generations in the order in which they finish; every request must fit the capacity.

        Traces are written in another thread, so a generation may come some steps after it finished.
        """
        return self.serve(ListedRequests(requests))

    @torch.inference_mode()
    def serve(self, arrivals: Arrivals) -> Iterator[Generation]:
        """As `run`, over requests that come while the loop runs; ends when none comes any more.

        A withdrawn request is yielded with `FinishReason.ERROR`.
        """
        with RecordWriter() as writer:
            try:
                yield from self._decode_all(arrivals, writer)
            except Exception:
                # requests that finished before the fault are complete and go to the caller
                yield from writer.rest()
                raise
            yield from writer.rest()

    def _decode_all(self, arrivals: Arrivals, writer: RecordWriter) -> Iterator[Generation]:
        rows: dict[int, RowState] = {}
        number, rounds = 0, BatchRounds()
        while True:
            # 1) admit: a withdrawn request frees its row; a free row takes the next request and reads its prompt but
            #    the last token
            for state in list(rows.values()):
                if (why := arrivals.withdrawn(state.request)) is not None:
                    rounds.withdraw(state.place.round, number)
                    self._withdraw(rows.pop(state.row), why, writer)
            for row in range(self._options.rows):
                if row not in rows and (request := self._next(arrivals, writer)) is not None:
                    rows[row] = self._admit(BatchPlace(arrivals.call, row, number), request)
                    rows[row].kind = rounds.kind(rows[row].request.sampling)
            if not rows:
                yield from writer.rest()
                if not arrivals.wait():
                    return
                continue
            # 2) propose: one proposal per active row
            active = [rows[row] for row in sorted(rows)]
            rounds.note(number, (state.kind for state in active))
            contexts = [self._context(state) for state in active]
            began = time.perf_counter()
            proposals = self._proposer.propose(contexts)
            drafted = time.perf_counter()
            for context, proposal in zip(contexts, proposals, strict=True):
                require_fits(proposal, context)
            # 3) verify: one target forward over [root, drafted nodes] of every row
            forward = self._forward(active, proposals)
            verified = time.perf_counter()
            timing = Timing(round((drafted - began) * 1e6), round((verified - drafted) * 1e6), len(active))
            # 4) commit: keep the accepted path, cut at an end, record, tell the proposer
            for state, context, proposal in zip(active, contexts, proposals, strict=True):
                try:
                    step = self._commit(state, context, proposal, forward, timing, writer)
                except NoTokenLeft as error:
                    state.failure = Withdrawal("refused", str(error))
                else:
                    arrivals.committed(state.request, step)
            # 5) release: finished rows become free, and those whose grammar gave up
            for state in active:
                if state.failure is not None:
                    rounds.withdraw(state.place.round, number + 1)
                    self._withdraw(rows.pop(state.row), state.failure, writer)
                    arrivals.failed(state.request, state.failure)
                elif state.reason is not None:
                    state.note({**rounds.facts(state.place.round), **self._finished(state)})
                    self._proposer.finish(rows.pop(state.row).row)
                    generation = state.generation()
                    writer.finish(state.recorder, generation)
                    arrivals.finished(generation)
                    rounds.forget(rows.values())
            number += 1
            yield from writer.ready()

    def _admit(self, place: BatchPlace, request: Request) -> RowState:
        randomness = self._parts.numbers(request.sampling.seed, request.stream)
        stops = self._parts.stops(request.sampling, self._target.eos_ids, self._decode)
        recorder = Recorder(self._header(request, place.facts())) if self._options.record else None
        rules, masks = self._options.stream, self._masks(request)
        state = RowState(
            place,
            request,
            randomness,
            stops,
            recorder,
            list(request.prompt),
            stream=None if rules is None else self._parts.streams(rules, stops),
            masks=masks,
            draft_masks=None if masks is None else DraftMasks(masks, self._target.vocabulary),
            fresh_numbers=self._verifier.facts.fresh_numbers,
        )
        if recorder is not None and is_read(request.tools, self._template):
            assert self._template is not None
            state.calls = self._parts.calls(request, self._template, self._decode)
        prompt, hidden = state.history[:-1], self._want.hidden
        read = NOTHING_READ
        if prompt:
            placement = chain_placement([prompt], [0], self._cache.trash, first_row=place.row)
            forward = self._target.forward(self._cache, placement, WantedOutputs(logits=False, hidden=hidden))
            read = TargetOutputs({layer: forward.hidden[layer][0] for layer in hidden})
        self._proposer.start(replace(self._context(state), read=read))
        return state

    def _finished(self, state: RowState) -> Mapping[str, Any]:
        """The facts of a finished request; none without a record."""
        if state.recorder is None:
            return {}
        # decoded a second time, apart from the text that the request's ends are found in
        return {
            "decoded": self._decode(state.generated),
            **state.stop_facts(),
            **state.call_facts(state.recorder.header),
            **self._streamed(state),
            **self._constrained(state),
        }

    def _masks(self, request: Request) -> MaskOf | None:
        own = None if self._grammars is None else self._grammars.constraint(request.sampling)
        return None if own is None else self._parts.masks(request, own)

    def _constrained(self, state: RowState) -> Mapping[str, Any]:
        """The facts of a finished request's grammar, none without one."""
        if self._grammars is None or state.request.sampling.structured is None:
            return {}
        return account_of_masks(self._grammars, state.request.sampling, state.generated, self._decode)

    def _context(self, state: RowState) -> Context:
        return state.context(self._proposer.facts.shape, self._options.gamma, self._options.capacity)

    def _next(self, arrivals: Arrivals, writer: RecordWriter) -> Request | None:
        """The next request whose prompt no filter refuses; refused ones are finished without tokens."""
        rules = self._options.stream
        while (request := arrivals.take()) is not None:
            decisions = [] if rules is None else rules.refusal(self._decode(request.prompt))
            if rules is None or not decisions:
                return request
            facts = {"decoded": "", "stream": stream_facts(rules, decisions), "ends": []}
            refused = Generation(request, (), FinishReason.FILTER, b"")
            self._end_unanswered(refused, facts, writer)
            arrivals.finished(refused)
        return None

    def _withdraw(self, state: RowState, why: Withdrawal, writer: RecordWriter) -> None:
        """End a request in the middle, before a round: its tokens are no answer, so the record has none."""
        self._proposer.finish(state.row)
        message = f"{why.message}, after {len(state.generated)} tokens"
        facts = {"error": {"kind": why.kind, "message": message}, **state.place.facts()}
        self._end_unanswered(Generation(state.request, (), FinishReason.ERROR, b"", facts=facts), facts, writer)

    def _end_unanswered(self, generation: Generation, facts: Mapping[str, Any], writer: RecordWriter) -> None:
        header = self._header(generation.request, facts) if self._options.record else None
        writer.finish(None if header is None else Recorder(header), generation)

    def _streamed(self, state: RowState) -> dict[str, Any]:
        """The stream's own facts, and beside them how many characters each number of tokens decodes to."""
        if state.stream is None:
            return {}
        tokens, rules = state.generated, state.stream.rules
        ends = [len(whole(self._decode(tokens[:count]))) for count in range(1, len(tokens) + 1)]
        facts = state.stream.facts()
        if has_model(rules.filters) and state.reason is not None:
            stops = StopRule(state.request.sampling, self._target.eos_ids, self._decode)
            facts["again"] = read_afresh(rules, stops, tokens, state.reason).facts()
        return {"stream": facts, "ends": ends}

    def _header(self, request: Request, given: Mapping[str, Any]) -> TraceHeader:
        facts = self._verifier.facts
        return TraceHeader(
            request=request.id,
            level=self._options.level,
            protocol=facts.protocol,
            lossless=facts.lossless,
            proposer=self._proposer.facts.name,
            vocabulary=self._target.vocabulary,
            stream=request.stream,
            sampling=request.sampling,
            eos_ids=self._target.eos_ids,
            finish_reason=FinishReason.LENGTH,
            prompt=request.prompt,
            coupled_draft=facts.draft_rule is DraftRule.COUPLED and self._proposer.facts.can_couple,
            facts={**given, **offer_facts(request.tools, self._template)},
        )

    def _forward(self, active: Sequence[RowState], proposals: Sequence[Proposal]) -> Forward:
        """Logits and hidden states of each row after the root, the drafts and the lookahead tokens, in this order."""
        steps: list[Placed | None] = [None] * (active[-1].row + 1)
        for state, proposal in zip(active, proposals, strict=True):
            tree = (
                side_by_side(proposal.tree, proposal.lookahead_tokens)
                if len(proposal.lookahead_tokens)
                else proposal.tree
            )
            steps[state.row] = Placed(state.history[-1], len(state.history), tree)
        return self._target.forward(self._cache, place(steps, self._cache.trash), self._want)

    def _commit(
        self,
        state: RowState,
        context: Context,
        proposal: Proposal,
        forward: Forward,
        timing: Timing,
        writer: RecordWriter,
    ) -> CommittedStep:
        request = state.request
        assert forward.logits is not None
        values = to_numpy(forward.logits[state.row, : 1 + len(proposal.tree)])
        rows = self._parts.rows(
            values,
            proposal.tree,
            state.history,
            len(request.prompt),
            request.sampling,
            self._target.eos_ids,
            state.masks,
        )
        cut = state.stops.cut(state.generated, self._verifier.verify(proposal, rows, state.numbers))
        if state.stream is not None:
            cut = state.stream.commit(state.generated, proposal, cut)
        path = [item.node for item in cut.verdict.examined if item.accepted]
        self._parts.keep(self._cache, state.row, len(state.history), path)
        if state.recorder is not None:
            record = _step_record(state, proposal, cut.verdict, rows, timing)
            writer.step(state.recorder, self._parts.record(request, record))
        state.commit(cut)
        context = replace(context, read=self._read(state.row, proposal, cut.verdict, forward, rows))
        self._proposer.observe(context, cut.verdict)
        text = None if state.stream is None else state.stream.text
        return CommittedStep(proposal, cut.verdict, rows, text, cut.reason)

    def _read(
        self, row: int, proposal: Proposal, verdict: StepOutcome, forward: Forward, rows: TargetRows
    ) -> TargetOutputs:
        """The outputs of a step's forward that one row's proposer reads."""
        decided = rows.logits[[item.row for item in verdict.emitted]] if self._proposer.facts.decided else None
        if not (self._want.hidden or len(proposal.lookahead_tokens)):
            return NOTHING_READ if decided is None else TargetOutputs(decided=decided)
        kept = [0, *(1 + item.node for item in verdict.examined if item.accepted)]
        first = 1 + len(proposal.tree)
        assert forward.logits is not None
        looked_ahead = forward.logits[row, first : first + len(proposal.lookahead_tokens)]
        return TargetOutputs(
            {layer: states[row, kept] for layer, states in forward.hidden.items()}, looked_ahead, decided
        )


def _step_record(
    state: RowState, proposal: Proposal, verdict: StepOutcome, rows: TargetRows, timing: Timing
) -> StepRecord:
    """Copies of the deciding rows, because the model may reuse its buffers."""
    decided = [item.row for item in verdict.emitted]
    spared = [row for row in range(len(rows.logits)) if row not in decided] if verdict.joint else []
    plain = state.request.sampling.plain_scores
    return StepRecord(
        step=state.step,
        position=len(state.history),
        proposal=proposal,
        verdict=verdict,
        logits=rows.logits[decided],
        scores=None if plain else np.stack([rows[row].scores for row in decided]),
        timing=timing,
        spare=rows.logits[spared] if spared else None,
        allowed=_masks_of(rows, decided),
        spare_allowed=_masks_of(rows, spared),
    )


def _masks_of(rows: TargetRows, numbers: Sequence[int]) -> Mask | None:
    """[n, V] the masks on these rows; None without a grammar or rows."""
    masks = [mask for mask in map(rows.allowed, numbers) if mask is not None]
    return np.stack(masks) if masks else None
