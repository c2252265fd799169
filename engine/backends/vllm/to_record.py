"""From the hooks' records of a request to its trace.

The worker's steps are used if they agree with the output; else the scheduler's, without rows; else the output alone.
Tokens that the engine emitted after an end are omitted and counted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.backends.second_decoding import NO_DECODING, SecondDecoding, undecoded
from engine.backends.vllm.decisions import StepReading, decided, with_forbidden
from engine.backends.vllm.features import RequestTerms, Witnessed, request_facts
from engine.backends.vllm.reconcile import Reconciliation, RequestMetrics, SourceReports, reconcile
from engine.backends.vllm.spool import SpooledRows, SpooledStep, valid_drafts
from engine.backends.vllm.supervise import CallFacts, RequestOutcome
from engine.backends.vllm.worker_terms import CallTerms
from engine.core.types import FinishReason, Generation, Request
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, header_of, observed_trace, unanswered
from engine.record.foreign.steps import ForeignStep, cut

Decoder = Callable[[Sequence[int], Sequence[int]], SecondDecoding | None]
"""From a prompt and the tokens after it to the tokens' text."""
NAN = float("nan")
INCOMPLETE = 1
"""The evidence level of text and log-probabilities."""


Answered = Callable[[Request, Sequence[int], str], Mapping[str, Any]]
"""A request, its tokens and its text -> the facts that follow from these alone."""


def no_facts(_request: Request, _tokens: Sequence[int], _text: str) -> Mapping[str, Any]:
    """Of a request with neither grammar nor tools."""
    return {}


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options for reading records: `drawn` is true if drafts of sampled requests are drawn from rows.

    masks: the worker's hook sees what grammars do to the rows.
    answered: further facts of an answer.
    """

    observed: ForeignEngine
    drawn: bool
    decode: Decoder
    terms: RequestTerms = field(default_factory=RequestTerms)
    masks: bool = True
    answered: Answered = no_facts

    @property
    def kept(self) -> CallTerms:
        """The terms that keep its rows."""
        observed = self.observed
        return CallTerms(
            observed.level, observed.protocol, observed.vocabulary, observed.eos_ids, self.drawn, self.masks
        )

    def of(self, request: Request) -> StepReading:
        """The reading of one request's steps."""
        sampling = request.sampling
        structured = sampling.structured is not None
        return StepReading(self.observed.vocabulary, sampling.greedy, structured, self.drawn, self.masks)


def generation_of(
    outcome: RequestOutcome, call: CallFacts, counted: Reconciliation, reading: RecordOptions
) -> Generation:
    """The request's generation; `counted` covers the whole call, whose mismatches cannot be attributed to a single
    request.
    """
    if outcome.failure is not None:
        return unanswered(outcome.request, reading.observed, outcome.failure.kind, outcome.failure.message)
    request, answer = outcome.request, outcome.answer
    tokens = tuple(answer["tokens"])
    reason = _reason(answer, reading.observed)
    told = told_of(outcome)
    reconciliation = reconcile(told)
    whole = Reconciliation(
        (*reconciliation.sources, *counted.sources), (*reconciliation.mismatches, *counted.mismatches)
    )
    steps = _steps(outcome, told, reconciliation)
    observed = _cut(steps, len(tokens), request, reading)
    facts = _facts(outcome, whole, call, steps) | _decoded(outcome, reading)
    facts |= reading.answered(request, tokens, answer["text"])
    facts |= _rounds(steps[: len(observed)], call) | request_facts(reading.terms, request, _witnessed(outcome))
    header = header_of(request, reading.observed, reason, facts)
    trace = observed_trace(header, ForeignRecord(observed, _logprobs(answer, observed)))
    return Generation(request, tokens, reason, trace, answer["text"], answer["latency_us"], facts)


def told_of(outcome: RequestOutcome) -> SourceReports:
    """Every source's account of an answered request."""
    answer, steps = outcome.answer, outcome.answer["steps"]
    return SourceReports(
        tokens=tuple(answer["tokens"]),
        worker=None if outcome.worker is None else tuple(item.step for item in outcome.worker),
        scheduler=outcome.scheduler,
        metrics=None if steps is None else RequestMetrics(tuple(steps["accepted"]), tuple(steps["drafted"])),
        open_end=isinstance(answer["stop_reason"], str),
    )


def _witnessed(outcome: RequestOutcome) -> Witnessed:
    worker = None if outcome.worker is None else tuple(item.settings for item in outcome.worker if item.settings)
    return Witnessed(outcome.answer, worker, outcome.scheduler[-1] if outcome.scheduler else None)


def _reason(answer: Mapping[str, Any], observed: ForeignEngine) -> FinishReason:
    if answer["finish_reason"] == "length":
        return FinishReason.LENGTH
    ended = answer["tokens"][-1:]
    return FinishReason.EOS if ended and ended[0] in observed.eos_ids else FinishReason.STOP


def _steps(outcome: RequestOutcome, told: SourceReports, reconciliation: Reconciliation) -> tuple[SpooledRows, ...]:
    """The best source that agrees with the output."""
    spoilt = {line.partition(":")[0] for line in reconciliation.mismatches}
    worker = with_forbidden(outcome.worker, outcome.scheduler)
    if worker is not None and "worker" not in spoilt:
        return worker
    if outcome.scheduler is not None and "scheduler" not in spoilt:
        # placeholders of an asynchronous scheduler are no tokens
        return tuple(SpooledRows(valid_drafts(item), 1, None) for item in outcome.scheduler)
    return tuple(SpooledRows(SpooledStep((), (token,)), 1, None) for token in told.tokens)


def _facts(
    outcome: RequestOutcome, reconciliation: Reconciliation, call: CallFacts, steps: Sequence[SpooledRows]
) -> dict[str, Any]:
    answer = outcome.answer
    seen = sum(len(step.step.emitted) for step in steps)
    facts: dict[str, Any] = {
        "reconciliation": reconciliation.facts,
        "dropped_tokens": max(0, seen - len(answer["tokens"])),
        "stop_reason": answer["stop_reason"],
        "cached_tokens": answer["cached_tokens"],
    }
    if outcome.scheduler and outcome.scheduler[-1].preemptions is not None:
        facts["preemptions"] = outcome.scheduler[-1].preemptions
    if call.counters and call.counters.get("preemptions"):
        facts["preemptions_of_call"] = call.counters["preemptions"]
    if any("entropy" in step.numbers or "entropy" in step.last for step in steps):
        facts["processed"] = _moments(steps)
    if answer["logprobs"] is not None:
        facts["logprobs"] = answer["logprobs"]
    why = [
        *reconciliation.mismatches,
        *call.problems,
        *([] if outcome.worker else ["no step of it was recorded in the worker"]),
    ]
    return facts | ({"level": INCOMPLETE, "why": "; ".join(why)} if why else {})


def _decoded(outcome: RequestOutcome, reading: RecordOptions) -> dict[str, Any]:
    """The second decoding by the rules of vLLM's outputs, whose defaults the driver keeps.

    Special tokens are skipped, and so is the token that ended the answer, unless the text keeps what ended it. A stop
    string is cut from the text, but its tokens stay on record: the text is then the beginning of this decoding.
    """
    answer = outcome.answer
    by_token = answer["finish_reason"] == "stop" and not isinstance(answer["stop_reason"], str)
    shown = bool(reading.terms.chosen(outcome.request).get("include_stop_str_in_output"))
    cut = by_token and not shown
    text = reading.decode(outcome.request.prompt, answer["tokens"][:-1] if cut else answer["tokens"])
    if text is None:
        return undecoded(NO_DECODING)
    facts = text.facts()
    return facts | ({"decoding": {**facts.get("decoding", {}), "stop_shown": True}} if shown else {})


def _rounds(steps: Sequence[SpooledRows], call: CallFacts) -> dict[str, Any]:
    """The engine's steps that the request shared with others of its call, as pairs of the first and the last.

    vLLM moves requests between rows, so that the request has no row of its own on record.
    """
    numbers = [step.round for step in steps]
    known = [other for other in numbers if other is not None]
    if not known or len(known) < len(numbers):
        return {}
    spans: list[list[int]] = []
    for number in known:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return {"call": call.name, "rounds": spans}


def _moments(steps: Sequence[SpooledRows]) -> dict[str, Any]:
    """Sums over the tokens whose law was seen: the engine's own log p of each, and its row's entropy and variance."""
    sums = {"tokens": 0, "log_p": 0.0, "entropy": 0.0, "variance": 0.0}
    for step in steps:
        if "entropy" in step.numbers:
            said = ~np.isnan(step.numbers["log_p_emitted"])
            sums["tokens"] += int(said.sum())
            for name, column in (("log_p", "log_p_emitted"), ("entropy", "entropy"), ("variance", "variance")):
                sums[name] += float(step.numbers[column][said].sum(dtype=np.float64))
        if "entropy" in step.last and not math.isnan(step.last["log_p"]):
            sums["tokens"] += 1
            for name in ("log_p", "entropy", "variance"):
                sums[name] += step.last[name]
    # a token that the engine's own law forbids has log p -inf, which JSON cannot represent
    return {name: value if math.isfinite(value) else None for name, value in sums.items()}


def _logprobs(answer: Mapping[str, Any], steps: Sequence[ForeignStep]) -> tuple[float, ...]:
    """The user's log-probabilities, for records without rows."""
    said = answer["logprobs"]
    if said is None or all(step.logits is not None or step.columns is not None for step in steps):
        return ()
    return tuple(NAN if item is None else item for item in said)


def _cut(steps: Sequence[SpooledRows], left: int, request: Request, reading: RecordOptions) -> tuple[ForeignStep, ...]:
    """The steps up to the output's last token."""
    result = []
    for step in steps:
        if left <= 0:
            break
        count = min(left, len(step.step.emitted))
        result.append(cut(decided(step, reading.of(request)), count))
        left -= count
    return tuple(result)
