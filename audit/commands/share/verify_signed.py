"""Verification of signed statements, alone or beside a report, as `audit verify` prints it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from audit.attach import mlflow_run
from audit.attach.statement import Statement, digest, envelopes, from_json
from audit.attach.verify import Verification, evidence_lines, verify, verify_digest
from audit.attest import statement as statements
from audit.attest.verify import EnvelopeResult, Trust, TrustOptions, moment_of, verify_envelope
from audit.attest.waivers import Unmet
from audit.errors import CannotDecide, UserError
from audit.gate.subjects import parse_subject
from audit.store import Store
from audit.store.base import keys
from audit.terminal.options import policy_digest
from audit.text.durations import age_option
from audit.text.printer import echo


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
    age = None if options.max_age is None else age_option(options.max_age)
    named = (parse_subject(text) for text in options.subjects)
    subjects = tuple(statements.StatementSubject(subject.role, subject.sha256) for subject in named)
    log_keys = tuple(map(keys.read_public, options.log_keys))
    return Trust(trusted, options.threshold, age, subjects, log_keys, policy_digest(options.policy_digest))


def verify_signed(path: Path, raw: bytes, options: TrustOptions, store: str | None) -> int:
    """Verify an envelope and print the outcome; returns the exit code. Without a store its rows are not compared."""
    trust, now = trust_of(options), datetime.now(UTC)
    if store is None:
        result = verify_envelope(raw, str(path), trust, now)
    else:
        with Store.open(store, create=False, read_only=True) as opened:
            result = verify_envelope(raw, str(path), trust, now, opened)
    echo(*_lines(path, result))
    return result.exit_code


def verify_report(bundle: Path, report: Path, content: bytes, options: TrustOptions, store: str | None) -> int:
    """Verify every statement of a bundle against a report, and print the outcome; returns the exit code."""
    return _verify_bundle(envelopes(bundle), report, options, store, partial(verify, content))


def verify_mlflow(report: Path, options: TrustOptions, store: str | None) -> int:
    """As `verify_report`, of a run of MLflow; exit code 3 if it has no statement."""
    target = mlflow_run.parse(str(report))
    bundle = None if target is None else target.bundle()
    if target is None or bundle is None:
        raise CannotDecide(f"{report}: it has no signed statement; attach evidence: audit attach RUN {report}")
    sha256 = digest(target.snapshot())
    return _verify_bundle(tuple(bundle.splitlines()), report, options, store, partial(verify_digest, sha256))


def _verify_bundle(
    lines: Sequence[bytes],
    report: Path,
    options: TrustOptions,
    store: str | None,
    compare: Callable[[Statement, str | None], Verification],
) -> int:
    trust, now, codes = trust_of(options), datetime.now(UTC), []
    for number, raw in enumerate(lines, start=1):
        place = f"{report}: statement {number}"
        result = verify_envelope(raw, place, trust, now)
        problems, bound = list(result.mismatches), None
        if not problems:
            bound = from_json(result.statement.to_json(), place)
            request = compare(bound, store)
            problems += [*request.mismatches, *([request.unknown] if request.unknown else [])]
            codes.append(request.exit_code)
        else:
            codes.append(1)
        echo(*_bundle_lines(report, result, bound, problems))
    return 1 if 1 in codes else max(codes)


def _bundle_lines(
    report: Path, result: EnvelopeResult, bound: Statement | None, problems: Sequence[str]
) -> Iterator[str]:
    yield from (f"mismatch: {problem}" for problem in problems)
    if bound is not None and not problems:
        run, signers = bound.predicate["run"], ", ".join(result.signers)
        yield f"verified: {report} is bound to the evidence of run {run}, signed by {signers}"
        yield from evidence_lines(bound.predicate)


def _lines(path: Path, result: EnvelopeResult) -> Iterator[str]:
    yield from (f"mismatch: {mismatch}" for mismatch in result.mismatches)
    if result.mismatches:
        return
    yield f"verified: {path} is signed by {', '.join(result.signers)}"
    yield from statement_lines(result.statement)


def statement_lines(statement: statements.InToto) -> Iterator[str]:
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
    policy = predicate["policy"]
    yield f"{predicate['verificationResult']} under {policy['uri']} sha256:{policy['digest']['sha256']}"
    yield from (f"verified {level}" for level in predicate.get("verifiedLevels", ()))


def _eval_result(predicate: Mapping[str, Any]) -> Iterator[str]:
    holds = "passed" if predicate["passed"] else "not passed"
    yield f"{predicate['metric']} {predicate['comparator']} {predicate['threshold']}: {holds}"


def _speculation(predicate: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"arm {arm['name']}: {_arm(arm)}" for arm in predicate["arms"])
    yield "the suite was registered first" if predicate["registered_first"] else "the suite was not registered first"


def _arm(arm: Mapping[str, Any]) -> str:
    if not arm["speculation"]:
        return "no speculation"
    counted = f"{arm['accepted']} of {arm['drafted']} drafted tokens kept"
    return f"{arm['proposer']}, rule {arm['rule']}, expected equivalence {arm['expected_equivalence']}, {counted}"


def _waiver(predicate: Mapping[str, Any]) -> Iterator[str]:
    yield f"{predicate['actor']} asks to waive {Unmet(**predicate['waives'])} until {predicate['until']}"
    yield f"reason: {predicate['reason']}"


def _review(predicate: Mapping[str, Any]) -> Iterator[str]:
    what = "the run" if predicate["waiver"] is None else f"waiver {predicate['waiver'][: statements.SHORT]}"
    role = "" if predicate["role"] is None else f" as {predicate['role']}"
    yield f"{predicate['actor']}{role}: {predicate['outcome']} {what}: {predicate['comment']}"


SAYS: Mapping[str, Any] = {
    statements.TEST_RESULT: _test_result,
    statements.DECISION: _decision,
    statements.EVAL_RESULT: _eval_result,
    statements.SPECULATION: _speculation,
    statements.WAIVER: _waiver,
    statements.REVIEW: _review,
}
"""Words of each known predicate."""
