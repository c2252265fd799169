"""The tokens and steps of a trace as JSON text that SQL can unnest, on SQLite and on PostgreSQL alike.

All columns are arrays over the steps of the request. Log-probabilities are rounded to thousandths of a nat; the exact
numbers stay in the trace. The views of `migrations.unnested` read them back.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.core.types import Floats, Mask, Role
from engine.record import shared_columns
from engine.record.joined_traces import JoinedTraces, ends_of
from engine.record.trace import Trace

ACCEPTED: Final = "A"
REJECTED: Final = "R"
UNREACHED: Final = "N"
LETTERS: Final[Mapping[Role, str]] = {Role.ACCEPTED: ACCEPTED, Role.RECOVERED: "C", Role.BONUS: "B", Role.PLAIN: "P"}
"""Letter of each role of an emitted token."""
ZERO: Final = -1
"""Stands for probability 0, which has no logarithm."""
UNKNOWN: Final = -2
"""Stands for a probability that is not known, which is null in the text."""
READ: Final = frozenset(
    (
        *("position", "n_drafted", "n_examined", "n_emitted", "draft_us", "verify_us", "draft_version", "node_token"),
        *("node_parent", "examined_node", "examined_p", "examined_q", "examined_accepted", "token", "role", "p"),
        "logprob",
    )
)
"""The columns of a trace that `readable_of` reads."""
_TENS: Final = 10 ** np.arange(1, 19)
NEEDED: Final = READ | shared_columns.NEEDED
"""These columns, and those that give whole ones."""
_CODES: Final = np.array([ord(LETTERS[role]) for role in sorted(Role)], np.uint8)

Wholes = NDArray[np.int64]
Cut = TypeVar("Cut", list[Any], str)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Counts and times of a request's steps.

    steps: of each step [position, n_drafted, n_accepted, n_emitted, draft_us, verify_us], and for a draft that
        learns the number of the version that drafted.
    draft_versions: object from that number to the version's digest; None for other drafts.
    """

    steps: str
    draft_versions: str | None


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """The tokens of a request's steps: of each step the drafted ones in tree order, then those without a draft.

    token: their ids.
    role: of each step a string with one letter per token: A accepted, R rejected, N not examined, C recovered, B bonus,
        P plain.
    parent, depth: of each drafted token the index of the one before it in the step's tree, -1 for the root, and the
        number of tokens before it there; None if every draft is a chain.
    p, q: minus 1000 times the natural logarithm of each token's probability at its decision, -1 for probability 0,
        null if not known. q stops with the drafted tokens. None if no value is known.
    logprob: the same of the raw row at temperature 1, of the emitted tokens only; None if it equals p everywhere.
    """

    token: str
    role: str
    parent: str | None
    depth: str | None
    p: str | None
    q: str | None
    logprob: str | None


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable columns of one request."""

    steps: StepColumns
    tokens: TokenColumns


@dataclass(frozen=True, slots=True)
class _Places:
    """Indices of a trace's drafted (N) and undrafted tokens (X) among a request's M readable ones.

    kept: [S] emitted drafted tokens. ends: [S + 1] where each step begins among the M, node_ends among the drafted.
    extra: [X] index among the emitted ones.
    """

    kept: Wholes
    ends: Wholes
    node_ends: Wholes
    node_at: Wholes
    extra: Wholes
    extra_at: Wholes


def readable_of(joined: JoinedTraces) -> list[Readable]:
    """The readable columns of several traces whose columns fit together (`engine.record.columns.shape_fault`).

    One at a time would take twenty times as long.
    """
    places = _places(joined.trace)
    with np.errstate(divide="ignore"):  # the logarithm of probability 0
        return list(map(Readable, _step_columns(joined, places.kept), _token_columns(joined, places)))


def _places(trace: Trace) -> _Places:
    drafted, emitted = trace.n_drafted.astype(np.int64), trace.n_emitted.astype(np.int64)
    accepted = trace.role == Role.ACCEPTED
    step_of = np.repeat(np.arange(trace.steps), emitted)
    kept = np.bincount(step_of[accepted], minlength=trace.steps).astype(np.int64)
    others = emitted - kept
    ends, node_ends, other_ends = (ends_of(counts) for counts in (drafted + others, drafted, others))
    node_at = np.arange(node_ends[-1]) + np.repeat(ends[:-1] - node_ends[:-1], drafted)
    extra_at = np.arange(other_ends[-1]) + np.repeat(ends[:-1] + drafted - other_ends[:-1], others)
    return _Places(kept, ends, node_ends, node_at, np.flatnonzero(~accepted), extra_at)


def _step_columns(joined: JoinedTraces, kept: Wholes) -> Iterator[StepColumns]:
    trace, learns = joined.trace, bool(len(joined.trace.draft_version))
    columns = [trace.position, trace.n_drafted, kept, trace.n_emitted, trace.draft_us, trace.verify_us]
    steps = np.stack([*columns, trace.draft_version] if learns else columns, axis=1)
    for own, header in zip(np.split(steps, np.cumsum(joined.steps)[:-1]), joined.headers, strict=True):
        digests = {str(version.number): version.digest for version in header.draft_versions}
        yield StepColumns(_text(own), json.dumps(digests, sort_keys=True) if learns else None)


def _token_columns(joined: JoinedTraces, places: _Places) -> Iterator[TokenColumns]:
    trace, ends = joined.trace, ends_of(joined.steps)
    token, code = np.empty(places.ends[-1], np.int64), np.full(places.ends[-1], ord(UNREACHED), np.uint8)
    token[places.node_at], token[places.extra_at] = trace.node_token, trace.token[places.extra]
    examined = np.repeat(places.node_ends[:-1], trace.n_examined) + trace.examined_node
    code[places.node_at[examined]] = ord(REJECTED)
    code[places.node_at[_accepted(trace, places, examined)]] = ord(ACCEPTED)
    code[places.extra_at] = _CODES[trace.role[places.extra]]
    values, emitted = _examined_values(trace, places, examined), ends_of(trace.n_emitted)
    p, q = _coded(np.log(values.p), places.ends[ends]), _coded(np.log(values.q), places.node_ends[ends])
    raw = _coded(values.logprob, emitted[ends])
    chains = ~_any(~_chain(trace, places), places.node_ends[ends])
    return map(
        TokenColumns,
        _by_step(token, places.ends, ends),
        map(_roles, _cut(_cut(code.tobytes().decode("ascii"), places.ends), ends)),
        _unless(chains, trace.node_parent, places.node_ends, ends),
        _unless(chains, _depths(trace, places), places.node_ends, ends),
        _known(p, places.ends, ends),
        _known(q, places.node_ends, ends),
        _raw(p, raw, _same(p, raw, code, emitted[ends]), lambda: _known(raw, emitted, ends)),
    )


def _accepted(trace: Trace, places: _Places, examined: Wholes) -> Wholes:
    """The accepted drafted tokens that were emitted: of each step the first that the rule accepted."""
    yes = trace.examined_accepted.astype(np.int64)
    step_of = np.repeat(np.arange(trace.steps), trace.n_examined)
    ends = ends_of(yes)
    before = ends[ends_of(trace.n_examined)[:-1]]
    rank = ends[1:] - before[step_of]
    first = (yes > 0) & (rank <= places.kept[step_of])
    silent = np.bincount(step_of[first], minlength=trace.steps) < places.kept
    if not silent.any():
        return examined[first]
    # steps whose record does not say which were accepted: in a chain they are the first
    order = np.arange(len(places.node_at)) - np.repeat(places.node_ends[:-1], trace.n_drafted)
    guessed = np.flatnonzero(order < np.repeat(np.where(silent, places.kept, 0), trace.n_drafted))
    return np.concatenate([examined[first & ~silent[step_of]], guessed])


@dataclass(frozen=True, slots=True)
class _Values:
    """Numbers p [M], q [N] and logprob [E], NaN where they are not known."""

    p: Floats
    q: Floats
    logprob: Floats


def _examined_values(trace: Trace, places: _Places, examined: Wholes) -> _Values:
    p, q = np.full(places.ends[-1], np.nan), np.full(len(places.node_at), np.nan)
    if len(trace.examined_p):
        p[places.node_at[examined]], q[examined] = trace.examined_p, trace.examined_q
    if len(trace.p):
        p[places.extra_at] = trace.p[places.extra]
    return _Values(p, q, trace.logprob if len(trace.logprob) else np.full(len(trace.token), np.nan))


@dataclass(frozen=True, slots=True)
class _Codes:
    """Log-probabilities: thousandths of a nat below 0, `ZERO` or `UNKNOWN`; `known` [requests]: any value is known."""

    codes: Wholes
    known: Mask


def _coded(logs: Floats, bounds: Wholes) -> _Codes:
    """The codes; `bounds` say where each request begins."""
    unknown = np.isnan(logs)
    codes = np.maximum(np.rint(-1000.0 * logs), 0.0)
    codes[~np.isfinite(codes)] = ZERO
    codes[unknown] = UNKNOWN
    return _Codes(codes.astype(np.int64), _any(~unknown, bounds))


def _any(flags: Mask, bounds: Wholes) -> Mask:
    """[requests] True where a flag of the request is set."""
    ends = ends_of(flags)[bounds]
    return np.asarray(ends[1:] > ends[:-1])


def _same(p: _Codes, raw: _Codes, code: NDArray[np.uint8], bounds: Wholes) -> Mask:
    """[requests] True where every emitted token's logprob has the code of its p."""
    emitted = p.codes[(code != ord(REJECTED)) & (code != ord(UNREACHED))]
    if len(emitted) != len(raw.codes):
        return np.zeros_like(p.known)
    return np.asarray(p.known & raw.known & ~_any(emitted != raw.codes, bounds))


def _raw(p: _Codes, raw: _Codes, same: Mask, texts: Callable[[], Iterable[str | None]]) -> Iterator[str | None]:
    if same.all():
        return repeat(None, len(same))
    missing = (None if equal else "[]" if known else None for equal, known in zip(same, p.known, strict=True))
    written = (None if equal else text for equal, text in zip(same, texts(), strict=True))
    return (text if known else none for known, text, none in zip(raw.known, written, missing, strict=True))


def _chain(trace: Trace, places: _Places) -> Mask:
    """[N] True if the drafted token comes after the one before it."""
    order = np.arange(len(places.node_at)) - np.repeat(places.node_ends[:-1], trace.n_drafted)
    return np.asarray(trace.node_parent == order - 1)


def _depths(trace: Trace, places: _Places) -> Wholes:
    """[N] number of drafted tokens before each on its path."""
    starts = np.repeat(places.node_ends[:-1], trace.n_drafted)
    above = np.where(trace.node_parent < 0, -1, starts + trace.node_parent)
    depth, at = np.zeros(len(above), np.int64), above
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, above[at], -1)
    return depth


def _known(coded: _Codes, ends: Wholes, requests: Wholes) -> Iterator[str | None]:
    """JSON of each request's codes, null for `UNKNOWN`: no other code contains its digits behind a minus."""
    for known, written in zip(coded.known.tolist(), _by_step(coded.codes, ends, requests), strict=True):
        yield written.replace(str(UNKNOWN), "null") if known else None


def _unless(absent: Mask, values: NDArray[np.integer[Any]], ends: Wholes, requests: Wholes) -> Iterator[str | None]:
    """JSON of each request's values, None where it is `absent`."""
    if absent.all():
        return repeat(None, len(absent))
    written = _by_step(values, ends, requests)
    return (None if lacking else text for lacking, text in zip(absent.tolist(), written, strict=True))


def _by_step(values: NDArray[np.integer[Any]], ends: Wholes, requests: Wholes) -> Iterator[str]:
    """JSON of the values of each step, by request.

    It is cut from the text of all values, because the garbage collector searches lists, which would double the time.
    """
    text = _text(values)
    begins = (1 + ends_of(_length(values) + 1)[ends]).tolist()
    steps = [text[begin : end - 1] for begin, end in itertools.pairwise(begins)]
    return ("[[" + "],[".join(own) + "]]" if own else "[]" for own in _cut(steps, requests))


def _length(values: NDArray[np.integer[Any]]) -> Wholes:
    return np.asarray(1 + np.searchsorted(_TENS, np.abs(values), side="right") + (values < 0))


def _roles(steps: Sequence[str]) -> str:
    """JSON of the letters of each step."""
    return '["' + '","'.join(steps) + '"]' if steps else "[]"


def _cut(values: Cut, ends: Wholes) -> list[Cut]:
    """The values from each end to the next."""
    places = ends.tolist()
    return [values[start:end] for start, end in itertools.pairwise(places)]


def _text(values: NDArray[np.integer[Any]]) -> str:
    """JSON of integers without spaces; the standard library takes ten times as long."""
    return orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY).decode("ascii")
