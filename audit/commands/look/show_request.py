"""The page of `audit show RUN REQUEST`: one generation, token by token."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from audit.evidence.records import ArmKind, RequestRecord
from audit.report.requests.generation import REJECTED, UNREACHED, TokenLine, events, token_lines
from audit.report.requests.pieces import Pieces, pieces_of
from audit.store import Store, StoredRun
from audit.store.base.values import requests_named
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import Painted, echo, echo_painted, painted_lines

COLUMNS = ("step", "position", "token", "text", "role", "after", "p", "q", "number", "margin")
COLOURS: Final = MappingProxyType({"accepted": "green", "recovered": "yellow", "bonus": "cyan", REJECTED: "red"})
"""Tokens of a step without a draft have no colour."""


def show_request(store: Store, run: StoredRun, name: str, *, as_json: bool) -> None:
    """Print one request. Raises UserError: the run has no such request."""
    request = find_request(store, run, name)
    lines = list(token_lines(request.trace))
    if as_json:
        echo_json({"request": request.request_id, "text": request.text, "tokens": lines})
        return
    pieces = pieces_of(run)
    header = request.trace.header
    echo(f"request   {cell(request.request_id)}")
    echo(f"rule      {header.protocol}, drafts by {cell(header.proposer)}")
    echo(f"prompt    {len(header.prompt)} tokens{_prompt(header.prompt, pieces)}")
    echo(f"answer    {len(request.tokens)} tokens, ended by {request.finish_reason}")
    if pieces.text is None:
        echo(f"no texts  {cell(pieces.why)}")
    echo("")
    for part in painted_lines(list(_painted(lines, pieces))):
        echo_painted(part)
    echo("")
    echo_painted(_legend())
    echo("")
    masked = any(line.allowed is not None for line in lines)
    echo_rows((*COLUMNS, "allowed") if masked else COLUMNS, [_row(line, pieces, masked=masked) for line in lines])
    echo(*events(header.facts))


def find_request(store: Store, run: StoredRun, name: str) -> RequestRecord:
    """The request ARM/CASE#SAMPLE, or CASE#SAMPLE of the first candidate that has it.

    Raises:
        UserError: the run has no such request.
    """
    candidates_first = sorted(run.arms, key=lambda item: item.kind is not ArmKind.CANDIDATE)
    places = {arm.name: place for place, arm in enumerate(candidates_first)}
    keys = sorted(store.finished(run.ulid), key=lambda key: (places[key.arm], key))
    result = requests_named(run.ulid, keys, name)[0]
    record = store.load_arm(run.ulid, result.arm, [result])
    return next(
        request for request in (*record.requests, *record.failed, *record.refused) if request.key == result.short
    )


def _prompt(tokens: Sequence[int], pieces: Pieces) -> str:
    return "" if pieces.text is None else f": {cell(''.join(map(pieces.text, tokens)))}"


def _painted(lines: Sequence[TokenLine], pieces: Pieces) -> Iterator[Painted]:
    """The answer with its tokens coloured by role; what was drafted and not kept stands in brackets."""
    for line in lines:
        text = cell(pieces.text(line.token) if pieces.text is not None else f" {line.token}")
        if line.role in (REJECTED, UNREACHED):
            yield _colour(f"[{text}]", line.role)
        else:
            yield _colour(text, line.role)


def _legend() -> Iterator[Painted]:
    for role in COLOURS:
        yield _colour(role, role)
        yield Painted(", ")
    yield Painted("plain, [drafted and not kept]")


def _colour(text: str, role: str) -> Painted:
    return Painted(text, COLOURS.get(role), dim=role == UNREACHED)


def _row(line: TokenLine, pieces: Pieces, *, masked: bool) -> tuple[object, ...]:
    text = "-" if pieces.text is None else repr(pieces.text(line.token))
    after = None if line.parent is None else "root" if line.parent < 0 else line.parent
    facts = (line.step, line.position, line.token, text, line.role, after)
    return (*facts, line.p, line.q, line.uniform, line.margin, *((line.allowed,) if masked else ()))
