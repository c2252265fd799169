"""Verification of a signed statement, as `audit verify` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from audit.attest.statement import DECISION, EVAL_RESULT, SPECULATION, TEST_RESULT, InToto, StatementSubject
from audit.attest.trust import TrustOptions
from audit.attest.verify import EnvelopeResult, Trust, moment_of, verify_envelope
from audit.commands.tables import cell
from audit.errors import UserError
from audit.gate.policy import parse_duration
from audit.gate.subjects import parse_subject
from audit.store import Store, keys


def trust_of(options: TrustOptions) -> Trust:
    """The options as values.

    Raises:
        UserError: no key, a threshold that the keys cannot reach, or an option that cannot be read.
    """
    trusted = tuple(map(keys.read_public, options.keys))
    if not trusted:
        raise UserError("a signed statement needs the keys that you trust; add --key FILE.pub")
    if options.threshold > len({key.raw for key in trusted}):
        raise UserError(f"--threshold {options.threshold}: only {len(trusted)} keys are trusted; add --key FILE.pub")
    age = None if options.max_age is None else parse_duration(options.max_age)
    if options.max_age is not None and not age:
        raise UserError(f"--max-age {options.max_age}: write a duration like 30d, 12h, P30D or PT12H")
    named = (parse_subject(text) for text in options.subjects)
    subjects = tuple(StatementSubject(subject.role, subject.sha256) for subject in named)
    return Trust(trusted, options.threshold, age, subjects, tuple(map(keys.read_public, options.log_keys)))


def verify_signed(path: Path, raw: bytes, options: TrustOptions, store: str | None) -> int:
    """Verify an envelope and print the outcome; returns the exit code. Without a store its rows are not compared."""
    trust, now = trust_of(options), datetime.now(UTC)
    if store is None:
        result = verify_envelope(raw, str(path), trust, now)
    else:
        with Store.open(store, create=False, read_only=True) as opened:
            result = verify_envelope(raw, str(path), trust, now, opened)
    for line in _lines(path, result):
        click.echo(cell(line))
    return result.exit_code


def _lines(path: Path, result: EnvelopeResult) -> Iterator[str]:
    yield from (f"mismatch: {mismatch}" for mismatch in result.mismatches)
    if result.mismatches:
        return
    yield f"verified: {path} is signed by {', '.join(result.signers)}"
    yield from statement_lines(result.statement)


def statement_lines(statement: InToto) -> Iterator[str]:
    """A statement in words: its kind, what it says, its moment and its subjects."""
    yield f"type       {statement.predicate_type}"
    says = SAYS.get(statement.predicate_type)
    if says is not None:
        yield from (f"says       {line}" for line in says(statement.predicate))
    moment = moment_of(statement)
    if moment is not None:
        yield f"from       {moment.isoformat()}"
    yield from (f"subject    {subject.name} sha256:{subject.sha256}" for subject in statement.subjects)


def _test_result(predicate: Mapping[str, Any]) -> Iterator[str]:
    passed, failed = len(predicate["passedTests"]), len(predicate["failedTests"])
    yield f"{predicate['result']}: {passed} tests passed, {failed} failed"


def _decision(predicate: Mapping[str, Any]) -> Iterator[str]:
    yield f"{predicate['verificationResult']} under {predicate['policy']['uri']}"


def _eval_result(predicate: Mapping[str, Any]) -> Iterator[str]:
    holds = "passed" if predicate["passed"] else "not passed"
    yield f"{predicate['metric']} {predicate['comparator']} {predicate['threshold']}: {holds}"


def _speculation(predicate: Mapping[str, Any]) -> Iterator[str]:
    for arm in predicate["arms"]:
        yield f"arm {arm['name']}: {_arm(arm)}"
    yield "the suite was registered first" if predicate["registered_first"] else "the suite was not registered first"


def _arm(arm: Mapping[str, Any]) -> str:
    if not arm["speculation"]:
        return "no speculation"
    counted = f"{arm['accepted']} of {arm['drafted']} drafted tokens kept"
    return f"{arm['proposer']}, rule {arm['rule']}, expected equivalence {arm['expected_equivalence']}, {counted}"


SAYS: Mapping[str, Any] = {
    TEST_RESULT: _test_result,
    DECISION: _decision,
    EVAL_RESULT: _eval_result,
    SPECULATION: _speculation,
}
"""Words of each known predicate."""
