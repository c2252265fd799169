"""Honoured by tokens: the emitted tokens speak for each requested parameter, against an engine that ignores it.

Claim: parameters. Null, for each active sampling parameter: each token is drawn from the law of the anchor's row with
this parameter off. Statistic: the product of the likelihood ratios of the requested law to that one, an e-value: under
the null it ever reaches 1 / (1 - `confidence`) with at most that probability (Ville's inequality). A parameter is shown
once the product reaches it, or if the two laws differ by at most `margin` in total variation on average, so that
ignoring the parameter changes next to nothing. Fault: the inverse ratio reaches the number of parameters / `alpha`,
whole rows only. Effect: the largest such mean among the parameters that the tokens do not show. Assumes what
`token_law` assumes. Cannot see: a parameter ignored at some places only, or replaced by a value between the requested
one and none (`token_law`); a grammar (`schema_conformance`).

The anchor's whole rows give both laws of a token. At level `topk` the requested probability is on record, and the
largest scores bound the other one from above, so that an e-value is too small at worst; rows that lack what a parameter
needs give None.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from audit.checks.base.interface import Check, needs_anchor, needs_reference
from audit.checks.honoured.causes import active, without
from audit.evidence.anchor.reference_laws import end_hidden, followed, not_followed
from audit.evidence.coverage.examined import anchored
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import Indices
from audit.evidence.records import ArmKind, Evidence, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from engine.core.types import Floats, RecordLevel, SamplingParams
from engine.record.trace import Trace
from engine.sampling.transforms import log_sum_exp, transform

GREEDY: Final = "a greedy arm's parameters move the most likely token alone; see token_law"
MOST: Final = 3.0
"""Largest log ratio of one token: where the other law excludes it, rounding may have kept it."""
SHARE: Final = 0.0001
"""Of the other law in the ratios' mixture: one token that rounding let through does not end all evidence."""
OF_SCORES: Final = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""Parameters that act on the scores which level `topk` records."""
BY_GRAMMAR: Final = "structured"
"""Judged by `schema_conformance`."""


@dataclass(frozen=True, slots=True)
class LawPair:
    """A token under two laws.

    speaks_for: log ratio of the requested law to the one without the parameter, `speaks_against` the inverse; each is
    that of a mixture, so that its mean under the law in the denominator is at most 1. distance: their total variation.
    """

    speaks_for: float
    speaks_against: float
    distance: float


def law_pairs(trace: Trace, index: int, names: Sequence[str], hidden: bool) -> Mapping[str, LawPair | None]:
    """For each named parameter: the token at an index under the requested law and the law without the parameter.

    `trace` has the reference's rows at level `topk` or `full`; with `hidden` the laws are those of a token that ends
    nothing. None: the recorded row does not give the other law.
    """
    pair_of = _whole if trace.header.level is RecordLevel.FULL else _listed
    return pair_of(trace, index, names, hidden)


def _whole(trace: Trace, index: int, names: Sequence[str], hidden: bool) -> Mapping[str, LawPair | None]:
    header, token = trace.header, int(trace.token[index])
    history = [*header.prompt, *trace.token[:index].tolist()]

    def law(sampling: SamplingParams) -> Floats:
        p = transform(
            trace.logits[index], history, len(header.prompt), sampling, header.eos_ids, trace.allowed(index)
        ).p
        return _unended(p, np.arange(len(p)), header.eos_ids) if hidden else p

    asked = law(header.sampling)
    others = {name: law(without(header.sampling, (name,))) for name in names}
    return {
        name: _pair(float(asked[token]), float(other[token]), float(np.abs(asked - other).sum() / 2.0))
        for name, other in others.items()
    }


def _listed(trace: Trace, index: int, names: Sequence[str], hidden: bool) -> Mapping[str, LawPair | None]:
    header, token = trace.header, int(trace.token[index])
    ids = trace.top_id[index].astype(np.int64)
    place = np.flatnonzero(ids == token)

    def bound(sampling: SamplingParams) -> Floats:
        """[K] upper bounds of p."""
        p = _bounds(trace, index, place, sampling)
        return _unended(p, ids, header.eos_ids) if hidden else p

    asked = bound(header.sampling)

    def pair(name: str) -> LawPair | None:
        if name not in OF_SCORES:
            return None
        other = bound(without(header.sampling, (name,)))
        rest = abs(1.0 - asked.sum()) + abs(1.0 - other.sum())
        # a token outside the list has at most the probability of the last one in it that ends nothing
        least = other[~np.isin(ids, np.asarray(header.eos_ids, dtype=np.int64))][-1:]
        own = float(other[place[0]] if len(place) else least[0] if len(least) else 1.0)
        return _pair(float(trace.row_p[index]), own, float((np.abs(asked - other).sum() + rest) / 2.0))

    return {name: pair(name) for name in names}


def _bounds(trace: Trace, index: int, place: Indices, sampling: SamplingParams) -> Floats:
    """[K] upper bounds of p of the listed tokens, falling; exact if truncation ends within the list."""
    heat, scores = sampling.temperature, trace.top_score[index]
    known = _normaliser(trace, index, place, heat)
    p = np.exp(scores / heat - (log_sum_exp(scores / heat) if known is None else known))
    kept = p >= sampling.min_p * p[0]
    if 0 < sampling.top_k <= len(p):
        kept &= p >= p[sampling.top_k - 1]
    mass, cut = float(p[kept].sum()), not kept.all()
    if sampling.top_p < 1.0 and (cut or known is not None):
        total = mass if cut else 1.0
        within = kept & (np.cumsum(p * kept) - p * kept < sampling.top_p * total)
        # beyond the list the nucleus holds top_p at least
        mass = max(mass, sampling.top_p * total) if within.all() else float(p[within].sum())
        kept = within
    elif not cut and (sampling.top_p < 1.0 or (sampling.top_k == 0 and sampling.min_p == 0.0)):
        mass = sampling.top_p
    return np.asarray(np.minimum(1.0, np.where(kept, p, 0.0) / mass))


def _normaliser(trace: Trace, index: int, place: Indices, heat: float) -> float | None:
    """Log of the summed exponentials of all scores at a temperature; None if the record does not give it."""
    sampling = trace.header.sampling
    if heat == sampling.temperature:
        return float(trace.top_lse[index])
    if heat == 1.0 and len(place) and sampling.plain_scores:
        return float(trace.top_score[index][place[0]] - trace.logprob[index])
    return None


def _unended(p: Floats, ids: Indices, ends: tuple[int, ...]) -> Floats:
    """The law of a token that ends nothing, or upper bounds of it."""
    listed = np.isin(ids, np.asarray(ends, dtype=np.int64))
    # an end token outside the list has at most the probability of the last one in it
    mass = float(p[listed].sum()) + (len(set(ends)) - int(listed.sum())) * float(p[-1])
    return np.asarray(np.minimum(1.0, np.where(listed, 0.0, p) / max(1e-12, 1.0 - mass)))


def _pair(asked: float, other: float, distance: float) -> LawPair:
    if asked <= 0.0:
        # impossible as requested: token_law judges it, unless rounding kept it
        return LawPair(math.log(SHARE) if other > 0.0 else 0.0, 0.0, distance)
    inverse = math.log(SHARE + (1.0 - SHARE) * other / asked)
    plain = math.log(SHARE + (1.0 - SHARE) * asked / other) if other > 0.0 else MOST
    return LawPair(min(MOST, plain), min(MOST, inverse), distance)


@dataclass(slots=True)
class ParameterEvidence:
    """The evidence on one parameter, token after token: sums, and of the two log ratios the largest so far."""

    tokens: int = 0
    speaks_for: float = 0.0
    speaks_against: float = 0.0
    most_for: float = 0.0
    most_against: float = 0.0
    distance: float = 0.0
    unknown: int = 0
    """Tokens whose recorded rows do not give the law without the parameter."""

    def add(self, pair: LawPair | None) -> None:
        """The next token."""
        self.tokens += 1
        if pair is None:
            self.unknown += 1
            return
        self.speaks_for += pair.speaks_for
        self.speaks_against += pair.speaks_against
        self.distance += pair.distance
        self.most_for = max(self.most_for, self.speaks_for)
        self.most_against = max(self.most_against, self.speaks_against)

    @property
    def mean_distance(self) -> float:
        """Mean total variation between the two laws; 1 if no row gives them."""
        return 1.0 if self.unknown else self.distance / self.tokens

    def needed(self, least: float) -> int | None:
        """About how many tokens would reach `least` nats; None if these do not lead there."""
        return math.ceil(self.tokens * least / self.speaks_for) if self.speaks_for > 0 else None


def _applies(evidence: Evidence) -> str | None:
    requests = evidence.candidate.requests
    return GREEDY if len(requests) and requests[0].trace.header.sampling.greedy else needs_anchor(evidence)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    reason = not_followed(evidence)
    if reason is not None:
        return CheckResult(Verdict.INCONCLUSIVE, reason)
    requests = followed(evidence)
    least, margin = -math.log1p(-float(params["confidence"])), float(params["margin"])
    collected = _collected(requests, int(params["max_tokens"]), least)
    open_ones = {
        name: one
        for name, one in collected.items()
        if one.most_for < least and (one.unknown or one.mean_distance > margin)
    }
    whole = all(request.trace.header.level is RecordLevel.FULL for request in requests)
    limit = math.log(max(1, len(collected)) / float(params["alpha"]))
    findings = tuple(_ignored(name, one) for name, one in open_ones.items() if whole and one.most_against >= limit)
    tokens = max((one.tokens for one in collected.values()), default=0)
    effect = max((one.mean_distance for one in open_ones.values()), default=0.0)
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.INCONCLUSIVE if open_ones else Verdict.CERTIFIED,
        summary=_summary(collected, open_ones, findings, least),
        n=tokens,
        statistic=min((one.most_for for one in collected.values()), default=0.0),
        effect=effect,
        bound=effect,
        margin=margin,
        findings=findings,
        details={"parameters": {name: _detail(one) for name, one in collected.items()}},
    )


def _collected(requests: Sequence[RequestRecord], most: int, least: float) -> dict[str, ParameterEvidence]:
    """The evidence on each active parameter, until it reaches `least` nats, of at most `most` tokens."""
    hidden = any(map(end_hidden, requests))
    collected: dict[str, ParameterEvidence] = {}
    left = most
    for request in requests:
        names = tuple(name for name in active(request.trace.header.sampling) if name != BY_GRAMMAR)
        for index in range(min(left, len(request.tokens))):
            open_ones = [name for name in names if collected.setdefault(name, ParameterEvidence()).most_for < least]
            if not open_ones:
                break
            for name, pair in law_pairs(request.trace, index, open_ones, hidden).items():
                collected[name].add(pair)
            left -= 1
    return collected


def _ignored(name: str, one: ParameterEvidence) -> Finding:
    return Finding(POOLED, 0, f"as if {name} were not set: that is e^{one.most_against:.3g} times as likely")


def _summary(
    collected: dict[str, ParameterEvidence],
    open_ones: dict[str, ParameterEvidence],
    findings: tuple[Finding, ...],
    least: float,
) -> str:
    if findings:
        return findings[0].message
    if open_ones:
        return "; ".join(_lacking(name, one, least) for name, one in open_ones.items())
    return f"the tokens speak for {', '.join(collected)}" if collected else "no sampling parameter is on"


def _lacking(name: str, one: ParameterEvidence, least: float) -> str:
    if one.unknown:
        return f"{name}: the rows on record do not give the law without it; set record: full"
    needed = one.needed(least)
    more = f"about {needed} tokens would" if needed else "they speak against it"
    moved = f"it moves the law by {one.mean_distance:.2g} a token"
    return f"{name}: {one.tokens} tokens do not tell whether it was ignored, {more}; {moved}"


def _detail(one: ParameterEvidence) -> dict[str, Any]:
    return {
        "tokens": one.tokens,
        "log_e": one.most_for,
        "log_e_of_the_other_law": one.most_against,
        "mean_distance": None if one.unknown else one.mean_distance,
    }


CHECK = Check(
    name="honoured_by_tokens",
    claim="parameters",
    defaults={"alpha": 0.001, "confidence": 0.99, "margin": 0.002, "max_tokens": 20_000},
    run=_run,
    applies=_applies,
    foresee=lambda params, design: GREEDY if design.greedy else needs_reference(params, design),
    null="each token is drawn from the law with one requested parameter ignored",
    effect="mean total variation between the laws with and without a parameter that the tokens do not show",
    # the summary says how many tokens would do
    companions=(ArmKind.ANCHOR,),
    covers=frozenset({Group.PARAMETERS}),
    examines=anchored,
)
