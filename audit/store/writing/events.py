"""Rows for SQL about a trace's grammar, tool calls and filters, and the comparison of stored rows with it.

Facts come from engines and from other people's stores, so a value of another kind than expected counts as not stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from audit.store.base.canonical import storable, to_json
from audit.store.tables.content import ConstraintEventRow, SafetyEventRow, ToolEventRow
from audit.store.tables.runs import Base
from engine.core.errors import TraceError

if TYPE_CHECKING:
    from engine.record import envelope

Row = Mapping[str, Any]
TABLES: Final = tuple(row.__tablename__ for row in (ConstraintEventRow, ToolEventRow, SafetyEventRow))
ERASED: Final = frozenset((ToolEventRow.__tablename__,))
"""Tables whose rows go with a request's content."""
KEYS: Final = (b'"constraint":', b'"tools":', b'"stream":')
"""One of these stands in the bytes of every trace with an event."""
WHOLE: Final = range(-(2**31), 2**31)
NO_EVENTS: Final[Mapping[str, Sequence[Row]]] = MappingProxyType(dict.fromkeys(TABLES, ()))


@dataclass(frozen=True, slots=True)
class _Facts:
    values: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return storable(value) if isinstance(value, str) else None

    def whole(self, key: str) -> int | None:
        return _whole(self.values.get(key))

    def part(self, key: str) -> _Facts:
        return _facts(self.values.get(key))

    def parts(self, key: str) -> list[_Facts]:
        value = self.values.get(key)
        return [_facts(item) for item in value] if isinstance(value, list) else []


def _facts(value: object) -> _Facts:
    return _Facts(value if isinstance(value, Mapping) else {})


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value in WHOLE else None


def rows_of(facts: Mapping[str, Any]) -> Mapping[str, Sequence[Row]]:
    """The rows of each event table that the facts of a trace give, without the request's key."""
    if not facts.keys() & {"constraint", "tools", "stream"}:
        return NO_EVENTS
    known = _facts(facts)
    return {
        "constraint_event": [_constraint(known.part("constraint"))] if "constraint" in facts else [],
        "tool_event": _tools(known.part("tools")),
        "safety_event": _safety(known.part("stream")),
    }


def in_trace(bare: envelope.Opened) -> Mapping[str, Sequence[Row]]:
    """The rows of each event table that a trace gives, without the request's key; none for a damaged trace."""
    if not any(key in bare.content for key in KEYS):
        return NO_EVENTS
    # imported with the first event: numpy is not needed to list runs and verdicts
    from engine.record import trace as traces

    try:
        return rows_of(traces.held(bare, ()).header.facts)
    except TraceError:
        return NO_EVENTS


def _constraint(account: _Facts) -> Row:
    whole, instead = account.values.get("whole"), account.text("instead")
    return {
        "library": account.text("library"),
        "version": account.text("version"),
        "refused_token": account.whole("refused"),
        "whole": whole if isinstance(whole, bool) else None,
        "not_read": account.text("unread") if instead is None else f"the answer consists of {instead}",
    }


def _tools(account: _Facts) -> list[Row]:
    spans = account.values.get("spans")
    made: list[Row] = []
    for number, call in enumerate(account.parts("calls")):
        span = spans[number] if isinstance(spans, list) and number < len(spans) else None
        first, end = span if isinstance(span, list) and len(span) == 2 else (None, None)
        arguments = call.values.get("arguments")
        row = {
            "call": number,
            "name": call.text("name"),
            "arguments": None if arguments is None else storable(to_json(arguments)),
            "first_token": _whole(first),
            "end_token": _whole(end),
            "problem": None,
        }
        made.append(row)
    problem = account.text("problem") or account.text("unread")
    if problem is not None:
        empty = dict.fromkeys(("name", "arguments", "first_token", "end_token"))
        made.append({"call": len(made), **empty, "problem": problem})
    return made


def _safety(stream: _Facts) -> list[Row]:
    filters = stream.parts("filters")
    made: list[Row] = []
    for number, decision in enumerate(stream.parts("decisions")):
        index, token = decision.whole("filter"), decision.whole("token")
        judge = filters[index] if index is not None and 0 <= index < len(filters) else _Facts({})
        row = {
            "event": number,
            "component": judge.text("component") or "",
            "version": judge.text("version") or "",
            "ruleset_sha256": (judge.text("ruleset") or "")[:64],
            "side": (judge.text("side") or "")[:16],
            "action": (decision.text("action") or "")[:16],
            "category": decision.text("category") or "",
            "token": None if token is None or token < 0 else token,
            "first_character": decision.whole("start") or 0,
            "end_character": decision.whole("end") or 0,
        }
        made.append(row)
    return made


def stored(session: Session, requests: Select[int]) -> dict[int, dict[str, list[Row]]]:
    """The rows of each event table by request, as `rows_of` gives them, for the requests that have any."""
    by_request: dict[int, dict[str, list[Row]]] = {}
    for name in TABLES:
        table = Base.metadata.tables[name]
        query = select(table).where(table.c.request_id.in_(requests)).order_by(*table.primary_key.columns)
        for row in session.execute(query).mappings():
            values = dict(row)
            by_request.setdefault(values.pop("request_id"), {}).setdefault(name, []).append(values)
    return by_request


def differing(rows: Mapping[str, Sequence[Row]], bare: envelope.Opened | None) -> str | None:
    """The first event table whose rows are not those of a trace; None if there is none.

    Without a trace, which was erased, only the tables that go with it are compared: they have no rows.
    """
    if bare is None:
        expected, tables = NO_EVENTS, ERASED
    else:
        expected, tables = in_trace(bare), frozenset(TABLES)
    return next((name for name in TABLES if name in tables and list(rows.get(name, ())) != list(expected[name])), None)
