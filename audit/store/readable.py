"""The tokens and steps of a trace as JSON text that SQL can unnest, on SQLite and on PostgreSQL alike.

All columns are arrays over the steps of the request. Log-probabilities are rounded to thousandths of a nat; the exact
numbers stay in the trace. `UNNESTED` in `migrations.views` reads them back.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from audit.store.integrity import shape_error
from engine.core.errors import TraceError
from engine.core.types import Floats, Role
from engine.record.trace import Trace, decode

ACCEPTED: Final = "A"
REJECTED: Final = "R"
UNREACHED: Final = "N"
LETTERS: Final[Mapping[Role, str]] = {
    Role.ACCEPTED: ACCEPTED,
    Role.RECOVERED: "C",
    Role.BONUS: "B",
    Role.PLAIN: "P",
}
"""Letter of each role of an emitted token."""
ZERO: Final = -1
"""Stands for probability 0, which has no logarithm."""
UNKNOWN: Final = -2
"""Stands for a probability that is not known, which is null in the text."""
READ: Final = frozenset(
    (
        "position",
        "n_drafted",
        "n_examined",
        "n_emitted",
        "draft_us",
        "verify_us",
        "draft_version",
        "node_token",
        "node_parent",
        "examined_node",
        "examined_p",
        "examined_q",
        "examined_accepted",
        "token",
        "role",
        "p",
        "logprob",
    )
)
"""The columns of a trace that `readable` reads."""
_CODES: Final = np.array([ord(LETTERS[role]) for role in sorted(Role)], np.uint8)

Wholes = NDArray[np.int64]
Cut = TypeVar("Cut", list[int], str)


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


def readable(trace: Trace) -> Readable:
    """The readable columns of a trace whose columns fit together (`audit.store.integrity.shape_error`)."""
    places = _places(trace)
    with np.errstate(divide="ignore"):  # the logarithm of probability 0
        return Readable(_step_columns(trace, places.kept), _token_columns(trace, places))


def values_of(columns: StepColumns | TokenColumns) -> dict[str, str | None]:
    """The columns by name, as a row holds them."""
    return {field.name: getattr(columns, field.name) for field in fields(columns)}


def tokens_of_payload(payload: bytes) -> dict[str, str | None] | None:
    """The tokens of a stored trace by column; None if the trace is damaged."""
    try:
        trace = decode(payload)
    except TraceError:
        return None
    return None if shape_error(trace) is not None else values_of(readable(trace).tokens)


def step_rows(columns: StepColumns) -> list[list[Any]]:
    """The steps as lists of index, position, counts, times, and the version's number and digest or None."""
    digests = json.loads(columns.draft_versions or "{}")
    return [
        [index, *step[:6], *((step[6], digests.get(str(step[6]))) if len(step) > 6 else (None, None))]
        for index, step in enumerate(json.loads(columns.steps))
    ]


def _places(trace: Trace) -> _Places:
    drafted, emitted = trace.n_drafted.astype(np.int64), trace.n_emitted.astype(np.int64)
    accepted = trace.role == Role.ACCEPTED
    step_of = np.repeat(np.arange(trace.steps), emitted)
    kept = np.bincount(step_of[accepted], minlength=trace.steps).astype(np.int64)
    others = emitted - kept
    ends, node_ends, other_ends = (_ends(counts) for counts in (drafted + others, drafted, others))
    node_at = np.arange(node_ends[-1]) + np.repeat(ends[:-1] - node_ends[:-1], drafted)
    extra_at = np.arange(other_ends[-1]) + np.repeat(ends[:-1] + drafted - other_ends[:-1], others)
    return _Places(kept, ends, node_ends, node_at, np.flatnonzero(~accepted), extra_at)


def _ends(counts: NDArray[np.integer[Any]]) -> Wholes:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _step_columns(trace: Trace, kept: Wholes) -> StepColumns:
    columns = [trace.position, trace.n_drafted, kept, trace.n_emitted, trace.draft_us, trace.verify_us]
    if not len(trace.draft_version):
        return StepColumns(_text(np.stack(columns, axis=1).tolist()), None)
    digests = {str(version.number): version.digest for version in trace.header.draft_versions}
    steps = np.stack([*columns, trace.draft_version], axis=1).tolist()
    return StepColumns(_text(steps), json.dumps(digests, sort_keys=True))


def _token_columns(trace: Trace, places: _Places) -> TokenColumns:
    token, code = np.empty(places.ends[-1], np.int64), np.full(places.ends[-1], ord(UNREACHED), np.uint8)
    token[places.node_at], token[places.extra_at] = trace.node_token, trace.token[places.extra]
    examined = np.repeat(places.node_ends[:-1], trace.n_examined) + trace.examined_node
    code[places.node_at[examined]] = ord(REJECTED)
    code[places.node_at[_accepted(trace, places, examined)]] = ord(ACCEPTED)
    code[places.extra_at] = _CODES[trace.role[places.extra]]
    emitted_ends = _ends(trace.n_emitted)
    p, q = _examined_values(trace, places, examined)
    numbers, raw = _coded(np.log(p)), _coded(trace.logprob)
    same = numbers is not None and raw is not None and np.array_equal(raw, _emitted_only(numbers, code))
    missing = "[]" if numbers is not None else None
    chains = _chains(trace, places)
    return TokenColumns(
        token=_by_step(token, places.ends),
        role=_roles(code, places.ends),
        parent=None if chains else _by_step(trace.node_parent, places.node_ends),
        depth=None if chains else _by_step(_depths(trace, places), places.node_ends),
        p=_optional(numbers, places.ends),
        q=_optional(_coded(np.log(q)), places.node_ends),
        logprob=None if same else missing if raw is None else _optional(raw, emitted_ends),
    )


def _accepted(trace: Trace, places: _Places, examined: Wholes) -> Wholes:
    """The accepted drafted tokens that were emitted: of each step the first that the rule accepted."""
    yes = trace.examined_accepted.astype(np.int64)
    step_of = np.repeat(np.arange(trace.steps), trace.n_examined)
    ends = _ends(yes)
    before = ends[_ends(trace.n_examined)[:-1]]
    rank = ends[1:] - before[step_of]
    found = examined[(yes > 0) & (rank <= places.kept[step_of])]
    if len(found) == places.kept.sum():
        return found
    # a record that does not say which were accepted: in a chain they are the first
    order = np.arange(len(places.node_at)) - np.repeat(places.node_ends[:-1], trace.n_drafted)
    return np.flatnonzero(order < np.repeat(places.kept, trace.n_drafted))


def _examined_values(trace: Trace, places: _Places, examined: Wholes) -> tuple[Floats, Floats]:
    """Numbers p [M] and q [N], NaN where they are not known."""
    p, q = np.full(places.ends[-1], np.nan), np.full(len(places.node_at), np.nan)
    if len(trace.examined_p):
        p[places.node_at[examined]], q[examined] = trace.examined_p, trace.examined_q
    if len(trace.p):
        p[places.extra_at] = trace.p[places.extra]
    return p, q


def _coded(logs: Floats) -> Wholes | None:
    """Log-probabilities as whole thousandths of a nat below 0, or `ZERO` or `UNKNOWN`; None if no value is known."""
    unknown = np.isnan(logs)
    if unknown.all():
        return None
    codes = np.maximum(np.rint(-1000.0 * logs), 0.0)
    codes[~np.isfinite(codes)] = ZERO
    codes[unknown] = UNKNOWN
    return np.asarray(codes.astype(np.int64))


def _emitted_only(numbers: Wholes, code: NDArray[np.uint8]) -> Wholes:
    """The values of emitted tokens among those of all."""
    return np.asarray(numbers[(code != ord(REJECTED)) & (code != ord(UNREACHED))])


def _chains(trace: Trace, places: _Places) -> bool:
    """True if every drafted token comes after the one before it."""
    order = np.arange(len(places.node_at)) - np.repeat(places.node_ends[:-1], trace.n_drafted)
    return bool((trace.node_parent == order - 1).all())


def _depths(trace: Trace, places: _Places) -> Wholes:
    """[N] number of drafted tokens before each on its path."""
    starts = np.repeat(places.node_ends[:-1], trace.n_drafted)
    above = np.where(trace.node_parent < 0, -1, starts + trace.node_parent)
    depth, at = np.zeros(len(above), np.int64), above
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, above[at], -1)
    return depth


def _optional(codes: Wholes | None, ends: Wholes) -> str | None:
    """JSON of the codes of each step, null for `UNKNOWN`: no other code contains its digits behind a minus."""
    return None if codes is None else _by_step(codes, ends).replace(str(UNKNOWN), "null")


def _by_step(values: NDArray[np.integer[Any]], ends: Wholes) -> str:
    """JSON of the values of each step."""
    return _text(_cut(values.tolist(), ends))


def _roles(code: NDArray[np.uint8], ends: Wholes) -> str:
    """JSON of the letters of each step."""
    steps = _cut(code.tobytes().decode("ascii"), ends)
    return '["' + '","'.join(steps) + '"]' if steps else "[]"


def _cut(values: Cut, ends: Wholes) -> list[Cut]:
    """The values of each step."""
    places = ends.tolist()
    return [values[start:end] for start, end in itertools.pairwise(places)]


def _text(values: list[list[int]]) -> str:
    """JSON of lists of integers without spaces; the standard library takes ten times as long."""
    return orjson.dumps(values).decode("ascii")
