"""One request step by step, as lines of its record: what was drafted, what became of it, and with which numbers.

Every number is as recorded; a level that does not hold it gives None.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.core.types import Floats, Role
from engine.record.trace import StepView, Trace, steps_of

REJECTED: Final = "rejected"
UNREACHED: Final = "not examined"
ROLES: Final = {int(role): role.name.lower() for role in Role}
"""Names of roles by their numbers in a record: the lookup in an enumeration takes most of a page's time."""
ACCEPTED: Final = ROLES[Role.ACCEPTED]
UNKNOWN: Final = "unknown"
SERVED: Final = "served"
"""The proposer of a server, whose answers do not show which tokens were drafted."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One drafted or emitted token.

    step, position: of the token; the position of a drafted token that was not kept is where it would have stood. role:
    accepted, recovered, bonus or plain, `unknown` of a server's; `rejected`, or `not examined`, of a drafted token that
    was not emitted. parent: the drafted token before it in the step's tree, from 0; -1 for the root; None if it was not
    drafted. p, q: of the token at its decision. uniform: the number that decided or drew it. margin: lead of the best
    score over the next, of the row that decided an emitted token. allowed: number of tokens that the grammar allows
    there.
    """

    step: int
    position: int
    token: int
    role: str
    parent: int | None = None
    p: float | None = None
    q: float | None = None
    uniform: float | None = None
    margin: float | None = None
    allowed: int | None = None


def token_lines(trace: Trace) -> Iterator[TokenLine]:
    """Every token of a record in order: of each step the drafted ones in tree order, then those without a draft."""
    for view in steps_of(trace):
        yield from _step(trace, view)


def _step(trace: Trace, view: StepView) -> Iterator[TokenLine]:
    tree, examined = view.tree, _examined(trace, view)
    emitted = range(view.emitted.start, view.emitted.stop)
    names = ROLES if trace.header.proposer != SERVED else dict.fromkeys(ROLES, UNKNOWN)
    roles = {at: names[int(number)] for at, number in zip(emitted, trace.role[view.emitted], strict=True)}
    # an accepted token stands on the row of its parent: its node is the one that was accepted there
    kept = {node: entry for node, entry in examined.items() if trace.examined_accepted[entry]}
    places = dict(zip(kept, (e for e in emitted if roles[e] == ACCEPTED), strict=False))
    depths: list[int] = []
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        depths.append(0 if parent < 0 else depths[parent] + 1)
        at, entry = places.get(node), examined.get(node)
        role = UNREACHED if entry is None else REJECTED if at is None else ACCEPTED
        yield TokenLine(
            step=view.index,
            position=view.position + depths[node],
            token=token,
            role=role,
            parent=parent,
            p=_number(trace.examined_p, entry),
            q=_number(trace.examined_q, entry),
            uniform=_number(trace.examined_uniform, entry),
            margin=_number(trace.margin, at),
            allowed=_allowed(trace, at),
        )
    for at in emitted:
        if roles[at] != ACCEPTED:
            yield TokenLine(
                step=view.index,
                position=view.position + at - view.emitted.start,
                token=int(trace.token[at]),
                role=roles[at],
                p=_number(trace.p, at),
                uniform=_number(trace.uniform, at),
                margin=_number(trace.margin, at),
                allowed=_allowed(trace, at),
            )


def _examined(trace: Trace, view: StepView) -> dict[int, int]:
    """Index of the last examination by node: a node may be examined once per round of its rule."""
    numbers = range(view.examined.start, view.examined.stop)
    return {int(trace.examined_node[number]): number for number in numbers}


def _number(column: Floats, at: int | None) -> float | None:
    if at is None or at >= len(column):
        return None
    value = float(column[at])
    return None if math.isnan(value) else value


def _allowed(trace: Trace, at: int | None) -> int | None:
    return int(trace.mask_count[at]) if at is not None and at < len(trace.mask_count) else None


def events(facts: Mapping[str, Any]) -> Iterator[str]:
    """A record's grammar, tool calls, filters and failures, a line each."""
    if error := facts.get("error"):
        yield f"error: {error['kind']}: {error['message']}"
    if grammar := facts.get("constraint"):
        refused = grammar.get("refused")
        where = "all tokens follow it" if refused is None else f"it forbids token {refused}"
        yield f"grammar: {grammar['library']} {grammar['version']}, {where}"
    tools = facts.get("tools", {})
    spans = tools.get("spans", [])
    for index, call in enumerate(tools.get("calls", [])):
        span = f" in tokens {spans[index][0]} to {spans[index][1] - 1}" if index < len(spans) else ""
        yield f"tool call{span}: {call.get('name')} {call.get('arguments')}"
    for decision in facts.get("stream", {}).get("decisions", []):
        place = f"characters {decision['start']} to {decision['end']}, token {decision['token']}"
        yield f"filter {decision['filter']}: {decision['action']} {decision['category']} at {place}"
