"""No leak: what left the engine is the committed text, and no piece of it left before its tokens were committed.

Claim: leak. Null: the chunks of every request add up to the text that its tokens decode to, up to the stop
string or the filter that ended it and with the characters removed that filters marked; chunks leave between steps,
without filters as soon as their tokens are committed; and no chunk, and no decision of a filter, needs a character that
the tokens committed by then do not decode to. Statistic: requests that break one of these; any is a fault. Effect:
their share; bound: its 99 % Clopper-Pearson upper bound. The engine decodes every number of tokens a second time, apart
from the stream. Cannot see: what a server does with the chunks, whether a decision is right and chunks wait for it
(filter_equality), and a tokenizer that decodes wrongly both times.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from audit.checks.base.interface import Check
from audit.checks.base.wrong_units import counted
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.streams import STREAM, FreshFilters, RecordedStream, needs, other_chunk, stream_again, stream_of
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.core.sequences import agreeing
from engine.core.types import FinishReason
from engine.stream.holding import settled
from engine.stream.redaction import redact

NO_STREAM = "the arm does not record its text as it leaves; write stream: true, or filters:"
QUOTED = 20
"""Characters of each text in a finding."""


def _applies(evidence: Evidence) -> str | None:
    arm = evidence.candidate
    # endpoints call the form of their answers a stream too
    if not arm.ours or STREAM not in arm.effective.facts:
        return NO_STREAM
    return None if len(arm.requests) or len(arm.refused) else NoEvidence("the arm has no requests")


def _leaks(request: RequestRecord, stream: RecordedStream) -> Iterator[str]:
    """Faults of one request's stream."""
    if len(stream.ends) != len(request.tokens):
        yield f"{len(stream.ends)} of {len(request.tokens)} tokens were decoded again"
        return
    yield from _read_too_far(request, stream)
    yield from _unlike(request, stream)
    yield from _early(request, stream)
    yield from _unseen(stream)
    if not stream.filters:
        # filters hold text back; what leaves around them is judged with their decisions (filter_equality)
        again = stream_again(request, stream, FreshFilters())
        late = None if again is None else other_chunk(stream.chunks, again.chunks)
        yield from () if late is None else (late,)


def _read_too_far(request: RequestRecord, stream: RecordedStream) -> Iterator[str]:
    """The filters saw the committed text up to its end, and no stop string."""
    sampling, reason, decoded = request.trace.header.sampling, request.finish_reason, stream.decoded
    stopped = reason in (FinishReason.STOP, FinishReason.FILTER)
    ended = stream.read == len(decoded) or (
        stopped and any(decoded.startswith(stop, stream.read) for stop in sampling.stop)
    )
    if not ended and not (reason is FinishReason.FILTER and stream.read == len(settled(decoded, sampling.stop))):
        yield f"the stream read {stream.read} characters, the committed text has {len(decoded)}"
    if reason is not FinishReason.EOS and not sampling.min_tokens:
        for stop in sampling.stop:
            if stop in decoded[: stream.read]:
                yield f"the stream read on after the stop string {stop!r}"


def _unlike(request: RequestRecord, stream: RecordedStream) -> Iterator[str]:
    """The chunks add up to the committed text without what was removed."""
    wanted = redact(stream.decoded[: stream.end], stream.redactions).text
    for name, text in (("the chunks add up to", stream.text), ("the caller's text has", request.text)):
        if text != wanted:
            at = agreeing(text, wanted)
            ours, theirs = (repr(item[at : at + QUOTED]) for item in (text, wanted))
            yield f"{name} {ours} at character {at}, the committed text gives {theirs}"
            return


def _early(request: RequestRecord, stream: RecordedStream) -> Iterator[str]:
    """Chunks leave at the ends of steps, and need no character that comes later."""
    borders = set(np.cumsum(request.trace.n_emitted, dtype=np.int64).tolist())
    if any(a.tokens >= b.tokens for a, b in pairwise(stream.chunks)):
        yield "chunks left in another order than their tokens"
    needed, length = needs(stream.decoded, stream.redactions), 0
    for number, chunk in enumerate(stream.chunks):
        length += len(chunk.text)
        if chunk.tokens not in borders:
            yield f"chunk {number} left after token {chunk.tokens}, where no step ends"
            return
        last = chunk.tokens == len(stream.ends)
        there = len(stream.decoded) if last else stream.ends[chunk.tokens - 1]
        if length > len(needed) or (length and needed[length - 1] > there):
            yield f"chunk {number} left after token {chunk.tokens} with text that its tokens do not decode to"
            return


def _unseen(stream: RecordedStream) -> Iterator[str]:
    """A filter decides about characters that are there."""
    for decision in stream.decisions:
        if decision.token < 0:
            continue
        last = decision.token == len(stream.ends) - 1
        token, end = decision.token, decision.end
        if token >= len(stream.ends) or end > (len(stream.decoded) if last else stream.ends[token]):
            yield f"a filter decided at token {token} about characters up to {end}, which were not committed"
            return


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    findings: list[Finding] = []
    silent = broken = 0
    arm = evidence.candidate
    for request in (*arm.requests, *arm.refused):
        stream = stream_of(request.trace.header)
        if stream is None:
            silent += 1
            continue
        result = [Finding(request.request_id, 0, message) for message in _leaks(request, stream)]
        broken += bool(result)
        findings += result
    n = len(arm.requests) + len(arm.refused) - silent
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE if silent else Verdict.CERTIFIED
    return counted(verdict, _summary(n, broken, silent), n, broken, findings, {"without_stream": silent})


def _summary(n: int, broken: int, silent: int) -> str:
    if broken:
        return f"{broken} of {n} streams are not the committed text as it was committed"
    if silent:
        return f"{silent} of {n + silent} requests record no stream; the others leak nothing"
    return f"all {n} streams are the committed text as it was committed, at most {upper_bound(0, n):.2g} are not"


CHECK = Check(
    name="no_leak",
    claim="leak",
    run=_run,
    applies=_applies,
    foresee=lambda _params, design: NO_STREAM if design.stream is None else None,
    null="what left the engine is the committed text, after its tokens were committed",
    effect="share of requests whose stream leaks",
    covers=frozenset({Group.EVENTS}),
)
