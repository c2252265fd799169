"""Rules that a request's tokens, text and numbers must obey whatever the random numbers were.

They complement the rules of the record's structure (`audit.evidence.structure`): ends and masks that the tokens alone
show, recorded probabilities that contradict each other or are out of range, and the number of drafted tokens per step
against the arm's declaration. Suspect numbers are selected from whole columns first, and the rules examine only those.
The selection holds every number that breaks a rule. Where the rule takes a logarithm or a sum, whose last bits depend
on the order of operations, it also holds numbers close to the limit.

No step drafts more than gamma. Where the proposer declares steady drafts (`engine.core.steady.SteadyDrafts`), every
step drafts as many tokens as gamma, the proposer's limit and the end of the request allow: the last token of a request
is never drafted, because a step emits one more token than it accepts. The rule does not apply to arms without the
declaration, beyond the draft's context length, and after a prefix of one token, where some proposers have no hidden
state yet.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.evidence.decisions import deciding_row, steps_by_token
from audit.evidence.records import RequestRecord
from audit.evidence.structure import Violation
from audit.evidence.tally import CLOSE, TOLERANCE, same
from engine.core.errors import EngineError
from engine.core.steady import SteadyDrafts
from engine.core.types import FinishReason, Floats, QKind
from engine.record.columns import entries_before, numbered
from engine.record.effective import Effective
from engine.record.trace import Trace, steps_of
from engine.sampling.transforms import log_sum_exp

Flags = NDArray[np.bool_]


def strange_numbers(trace: Trace, *, ours: bool = True) -> Flags:
    """[E] true where p, log-probability or margin may be impossible; a p that is not `ours` may be unknown."""
    p, logprob, margin = trace.p, trace.logprob, trace.margin
    wrong = ~(_probable(p) | (np.isnan(p) & (not ours))) | np.isnan(logprob) | (logprob > TOLERANCE) | ~(margin >= 0)
    if trace.header.lossless:
        wrong |= (p == 0) | np.isneginf(logprob)
    if trace.header.sampling.plain_scores:
        wrong |= logprob > -np.log1p(np.exp(-np.maximum(margin, 0.0))) + CLOSE
    return np.asarray(wrong)


def strange_drafts(trace: Trace, *, ours: bool = True) -> Flags:
    """[X] true where p or q of an examined token is no probability; q may be unknown, and p if it is not `ours`."""
    p, q = trace.examined_p, trace.examined_q
    return np.asarray(~(_probable(p) | (np.isnan(p) & (not ours))) | ~(_probable(q) | np.isnan(q)))


def strange_tops(trace: Trace) -> Flags:
    """[E] true where the largest scores may contradict each other or the emitted token."""
    scores, token = trace.top_score, trace.token
    # NaN scores break the order, so such a row is suspect whatever its sums are
    with np.errstate(invalid="ignore"):
        scaled = scores / (trace.header.sampling.temperature or 1.0)
        logs = scaled - trace.top_lse[:, None]
        rising = ~np.all(scores[:, 1:] <= scores[:, :-1], axis=1)
        ids = np.sort(trace.top_id, axis=1)
        wrong = rising | np.any(ids[:, 1:] == ids[:, :-1], axis=1) | ~(trace.top_lse >= scaled[:, 0] - TOLERANCE)
        if trace.header.lossless:
            result = trace.top_id == token[:, None]
            rank = np.where(result.any(axis=1), result.argmax(axis=1), scores.shape[1])
            wrong |= _may_be_outside(trace, rank, np.asarray(logs))
    return np.asarray(wrong)


def _may_be_outside(trace: Trace, rank: NDArray[np.int64], logs: Floats) -> Flags:
    """[E] true where the token may lie outside the truncated set; `rank` is its index in the K `logs`, or K."""
    sampling, kept = trace.header.sampling, logs.shape[1]
    if sampling.greedy:
        return np.asarray(rank > 0)
    rows = np.arange(len(rank))
    own = logs[rows, np.minimum(rank, kept - 1)]
    wrong = (rank < kept) & (trace.p < np.exp(own) - CLOSE)
    if 0 < sampling.top_k <= kept:
        wrong |= own < logs[:, sampling.top_k - 1] - CLOSE
    if sampling.min_p:
        wrong |= own < logs[:, 0] + math.log(sampling.min_p) - CLOSE
    if sampling.top_p < 1:
        before = np.concatenate([np.zeros((len(rank), 1)), np.cumsum(np.exp(logs), axis=1)], axis=1)
        wrong |= before[rows, rank] > sampling.top_p + CLOSE
    return np.asarray(wrong)


def text_faults(request: RequestRecord) -> Iterator[Violation]:
    """Stop strings that remain in the text.

    A stop string completed before `min_tokens` may remain, and one at an end token may be part of its spelling.
    """
    sampling, last = request.trace.header.sampling, max(0, request.trace.steps - 1)
    if sampling.min_tokens or request.finish_reason is FinishReason.EOS:
        return
    for stop in sampling.stop:
        if stop in request.text:
            yield Violation(last, f"the text contains the stop string {stop!r}")


def mask_faults(trace: Trace) -> Iterator[Violation]:
    """Ends before `min_tokens` and forbidden sequences: such tokens have probability 0 under every row."""
    header, sampling, tokens = trace.header, trace.header.sampling, trace.tokens
    steps = steps_by_token(trace)
    ends = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else header.eos_ids)))
    for at, token in enumerate(tokens[: sampling.min_tokens]):
        if token in ends:
            yield Violation(steps[at], f"token {at + 1} is the end {token}, min_tokens is {sampling.min_tokens}")
    if header.finish_reason is FinishReason.STOP and len(tokens) < sampling.min_tokens:
        yield Violation(
            max(0, trace.steps - 1), f"stopped after {len(tokens)} tokens, min_tokens is {sampling.min_tokens}"
        )
    for word in sampling.bad_words:
        for at in range(len(word), len(tokens) + 1):
            if tokens[at - len(word) : at] == word:
                yield Violation(steps[at - 1], f"the forbidden sequence {list(word)} was emitted")


def number_faults(trace: Trace, *, ours: bool = True) -> Iterator[Violation]:
    """Recorded probabilities of emitted and examined tokens, p only where it is recorded; level `scalars` and above."""
    steps = numbered(trace.n_emitted).step
    for at in np.flatnonzero(strange_numbers(trace, ours=ours)).tolist():
        for message in _emitted_faults(trace, at, ours):
            yield Violation(int(steps[at]), f"token {int(trace.token[at])}: {message}")
    strange = np.flatnonzero(strange_drafts(trace, ours=ours))
    for view in steps_of(trace, np.unique(numbered(trace.n_examined).step[strange]).tolist()):
        for x in range(view.examined.start, view.examined.stop):
            token = int(trace.node_token[view.nodes][int(trace.examined_node[x])])
            for what, value in (("p", float(trace.examined_p[x])), ("q", float(trace.examined_q[x]))):
                if not (_probable(value) or ((what == "q" or not ours) and math.isnan(value))):
                    yield Violation(view.index, f"{what} of drafted token {token} is {value:.10g}")


def _emitted_faults(trace: Trace, at: int, ours: bool) -> Iterator[str]:
    p, logprob, margin = float(trace.p[at]), float(trace.logprob[at]), float(trace.margin[at])
    if not (_probable(p) or (math.isnan(p) and not ours)):
        yield f"p is {p:.10g}"
    elif p == 0 and trace.header.lossless:
        yield "p is 0, the token is outside the target's support"
    if math.isnan(logprob) or logprob > TOLERANCE or (logprob == -math.inf and trace.header.lossless):
        yield f"log-probability {logprob:.10g}"
    if not margin >= 0:
        yield f"margin {margin:.10g}"
    elif trace.header.sampling.plain_scores and logprob > -math.log1p(math.exp(-margin)) + TOLERANCE:
        # the two largest logits alone bound every token's probability
        yield f"log-probability {logprob:.10g} is more than a lead of {margin:.6g} allows"


def _probable(values: ArrayLike) -> Flags:
    numbers = np.asarray(values)
    return np.asarray((numbers >= 0.0) & (numbers <= 1.0 + TOLERANCE))


def top_faults(trace: Trace, *, ours: bool = True) -> Iterator[Violation]:
    """The largest entries of each row against the emitted token, and p where it is `ours`; level `topk`."""
    steps = numbered(trace.n_emitted).step
    for at in np.flatnonzero(strange_tops(trace)).tolist():
        step = int(steps[at])
        ids, scores, lse = trace.top_id[at], trace.top_score[at], float(trace.top_lse[at])
        scaled = scores / (trace.header.sampling.temperature or 1.0)
        token = int(trace.token[at])
        # a row with fewer possible tokens than entries ends in -inf
        falling = bool(np.all(scores[1:] <= scores[:-1]))
        if not falling or len(set(ids.tolist())) < len(ids) or not lse >= scaled[0] - TOLERANCE:
            yield Violation(step, f"token {token}: the recorded largest scores contradict each other")
        elif trace.header.lossless:
            result = np.flatnonzero(ids == token)
            rank = int(result[0]) if len(result) else len(ids)
            for message in _outside(trace, at, rank, np.asarray(scaled - lse), ours):
                yield Violation(step, f"token {token}: {message}")


def _outside(trace: Trace, at: int, rank: int, logs: Floats, ours: bool) -> Iterator[str]:
    """Truncation that the token escaped; `rank` is its place among the K `logs`, K if it has none."""
    sampling, kept = trace.header.sampling, len(logs)
    if sampling.greedy:
        if rank:
            yield "it is not the argmax"
        return
    own = float(logs[min(rank, kept - 1)])
    if 0 < sampling.top_k <= kept and own < logs[sampling.top_k - 1] - TOLERANCE:
        yield f"outside the {sampling.top_k} largest"
    if sampling.min_p and own < logs[0] + math.log(sampling.min_p) - TOLERANCE:
        yield f"below min_p {sampling.min_p:g}"
    if sampling.top_p < 1 and float(np.exp(logs[:rank]).sum()) > sampling.top_p + TOLERANCE:
        yield f"outside the top-p set of {sampling.top_p:g}"
    if ours and rank < kept and float(trace.p[at]) < math.exp(own) - TOLERANCE:
        yield f"p {float(trace.p[at]):.10g} is below {math.exp(own):.10g}, what the row gives before truncation"


def row_faults(trace: Trace, *, ours: bool = True) -> Iterator[Violation]:
    """Recorded log-probability, margin, and p where it is `ours`, against the row; level `full`."""
    for at, (step, logits) in enumerate(zip(steps_by_token(trace), trace.logits, strict=True)):
        token = int(trace.token[at])
        try:
            row = deciding_row(trace, at)
        except EngineError as error:
            yield Violation(step, f"token {token}: its row gives no distribution ({error})")
            continue
        wide = logits.astype(np.float64)
        second, first = np.partition(row.scores, -2)[-2:] if len(wide) > 1 else (-math.inf, row.scores[0])
        computed = (
            *((("p", float(trace.p[at]), float(row.p[token])),) if ours else ()),
            ("log-probability", float(trace.logprob[at]), float(wide[token] - log_sum_exp(wide[None])[0])),
            ("margin", float(trace.margin[at]), float(first - second)),
        )
        for what, recorded, value in computed:
            if not same(recorded, value):
                yield Violation(step, f"token {token}: {what} recorded {recorded:.10g}, its row gives {value:.10g}")
        if row.p[token] == 0 and trace.header.lossless and trace.p[at] != 0:
            yield Violation(step, f"token {token} is outside the support that its row gives")


def one_hot_faults(trace: Trace) -> Iterator[Violation]:
    """Rows of q of drafted tokens that nobody drew, which have all mass on that token; level `full`."""
    owner, first = numbered(trace.n_examined).step, entries_before(trace.n_drafted)
    for x in np.flatnonzero(trace.q_kind[owner] == QKind.ONE_HOT)[: len(trace.q_rows)]:
        token, row = int(trace.node_token[first[owner[x]] + trace.examined_node[x]]), trace.q_rows[x]
        if not (row[token] == 1 and np.count_nonzero(row) == 1):
            yield Violation(int(owner[x]), f"q of drafted token {token} is another law than the token itself")


SHORTEST = 2
"""Shortest prefix, in tokens, at which the declaration of steady drafts holds."""


def length_faults(trace: Trace, declared: Effective) -> Iterator[Violation]:
    """Steps that drafted more or fewer tokens than the arm declares."""
    gamma = declared.gamma
    if gamma is None:
        return
    for step in np.flatnonzero(trace.n_drafted > gamma):
        yield Violation(int(step), f"{int(trace.n_drafted[step])} tokens were drafted, gamma is {gamma}")
    if declared.steady_drafts is None:
        return
    due = _due(trace, gamma, declared.steady_drafts)
    for step in np.flatnonzero(trace.n_drafted < due):
        yield Violation(
            int(step),
            f"{int(trace.n_drafted[step])} tokens were drafted where {int(due[step])} were due, gamma is {gamma}",
        )


def _due(trace: Trace, gamma: int, steady: SteadyDrafts) -> NDArray[np.int64]:
    """[S] number of tokens that each step must draft; 0 without a declaration."""
    prefix = trace.position.astype(np.int64)
    left = len(trace.header.prompt) + trace.header.sampling.max_new_tokens - prefix - 1
    most = gamma if steady.most is None else min(gamma, steady.most)
    due = np.clip(left, 0, most)
    return np.where((prefix >= SHORTEST) & (prefix + due <= steady.context), due, 0)
