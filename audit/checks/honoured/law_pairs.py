"""For each emitted token its requested law beside the law with one sampling parameter ignored, by the reference's row.

Whole rows give both laws. At level `topk` the requested probability is on record, and the largest scores bound the
other one from above, so that an e-value is too small at worst; rows that lack what a parameter needs give None.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.checks.honoured.causes import active, without
from audit.evidence.decisions import Indices
from engine.core.types import Floats, RecordLevel, SamplingParams
from engine.record.trace import Trace
from engine.sampling.transforms import log_sum_exp, transform

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


def parameters_on(sampling: SamplingParams) -> tuple[str, ...]:
    """The active parameters that tokens can show."""
    return tuple(name for name in active(sampling) if name != BY_GRAMMAR)


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
