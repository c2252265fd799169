"""Constraint replay: every row was masked by the grammar in the state that the emitted tokens give it.

Claim: constraint. Null: the mask on the row that decided a token is the grammar's after the tokens before it, and the
token is one that it allows. The backend computes the masks of each answer a second time, from the emitted tokens alone
and with a fresh matcher that is never rolled back (fact `constraint`); the check compares them with the recorded ones,
token by token, and at level `full` the recorded bits with their digest and with the emitted token. It also compares the
account's library, version, vocabulary, end and text with the request, its tokens and the other requests. Statistic:
tokens whose mask differs or forbids them; one is a fault, because a mask of another state changes the law. Effect:
their share; bound: its 99 % Clopper-Pearson upper bound. Cannot see: a grammar library that is wrong both times (see
schema_conformance), the masks of rejected drafted tokens, and masks that the target never applied but recorded (see
replay).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.checks.base.interface import NO_GRAMMAR, Check, Design
from audit.checks.base.wrong_units import counted
from audit.evidence.coverage.groups import Group
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.backends.evidence import Part
from engine.record.columns import numbered
from engine.record.facts import CONSTRAINT
from engine.record.trace import Trace

ONE_ACCOUNT: Final = "the backend computes no mask a second time; masks have one account only"


def account_of(trace: Trace) -> Mapping[str, Any] | None:
    """The second account of a request's masks; None if the backend made none."""
    result = trace.header.facts.get(CONSTRAINT)
    return result if isinstance(result, Mapping) and isinstance(result.get("masks"), list) else None


def unread_of(trace: Trace) -> str | None:
    """Why the backend made no second account of a request's masks; None if it does not say."""
    result = trace.header.facts.get(CONSTRAINT)
    reason = result.get("unread") if isinstance(result, Mapping) else None
    return None if reason is None else str(reason)


def _applies(evidence: Evidence) -> str | None:
    if not evidence.constrained:
        return NO_GRAMMAR
    requests = evidence.candidate.requests
    if any(account_of(request.trace) is not None for request in requests):
        return None
    reasons = (unread_of(request.trace) for request in requests)
    return NoEvidence(next((reason for reason in reasons if reason is not None), ONE_ACCOUNT))


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.structured:
        return NO_GRAMMAR
    return None if design.shown.gives(Part.MASKS) else NoEvidence(ONE_ACCOUNT)


@dataclass(frozen=True, slots=True)
class _WrongMask:
    """A token whose mask is wrong, by its index in the answer."""

    at: int
    reason: str


def _misstated(request: RequestRecord, account: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[_WrongMask]:
    """Statements of an account about its grammar and answer that the record, or the arm's `usual` one, contradicts."""
    header = request.trace.header
    spec, decoded, text = header.sampling.structured, str(header.facts.get("decoded", request.text)), account["text"]
    assert spec is not None
    ended = any(token in (*header.eos_ids, *header.sampling.stop_token_ids) for token in request.tokens[-1:])
    agrees = {
        "library": account["library"] == spec.library,
        "end": account["whole"] == ended,
        "text": decoded.startswith(text) if ended else text in (decoded, request.text),
        **{name: account.get(name) == usual.get(name) for name in ("version", "vocabulary")},
    }
    for name, right in agrees.items():
        if not right:
            yield _WrongMask(0, f"the second account of its masks has another {name}")


def _wrong(trace: Trace, account: Mapping[str, Any]) -> Iterator[_WrongMask]:
    """The tokens of one answer whose masks are wrong, in order."""
    again, counts = [int(value, 16) for value in account["masks"]], account["counts"]
    if not len(again) == len(counts) == len(trace.mask_digest) == len(trace.token):
        yield _WrongMask(0, f"{len(trace.mask_digest)} masks are on record for {len(trace.token)} tokens")
        return
    bits = _digests(trace)
    for at, (digest, second) in enumerate(zip(trace.mask_digest.tolist(), again, strict=True)):
        allowed = trace.allowed(at)
        if digest != second:
            yield _WrongMask(at, f"the mask of {int(trace.mask_count[at])} tokens is that of another state")
        elif trace.mask_count[at] != counts[at]:
            yield _WrongMask(at, f"the mask has {counts[at]} tokens, the record says {int(trace.mask_count[at])}")
        elif bits is not None and bits[at] != digest:
            yield _WrongMask(at, "the recorded mask is not what its digest says")
        elif allowed is not None and not allowed[int(trace.token[at])]:
            yield _WrongMask(at, "the mask forbids it")
        elif at == account.get("refused"):
            yield _WrongMask(at, "the grammar forbids it")


def _digests(trace: Trace) -> list[int] | None:
    """Digests of the recorded bits; None below level `full`."""
    # imported late: the recorder is part of the engine
    from engine.record.rows.row_digests import digests

    if not len(trace.mask_bits):
        return None
    return [int(value) for value in digests(trace.mask_bits)]


@dataclass(frozen=True, slots=True)
class _Read:
    """One request: its tokens, those with a wrong mask, and the finding at the first of them."""

    tokens: int = 0
    wrong: int = 0
    finding: Finding | None = None
    silent: bool = False


def _read(request: RequestRecord, usual: Mapping[str, Any]) -> _Read:
    trace = request.trace
    account = account_of(trace)
    if account is None:
        return _Read(silent=True)
    result = [*_wrong(trace, account), *_misstated(request, account, usual)]
    finding = None
    if result:
        first = result[0]
        steps = numbered(trace.n_emitted).step
        step = int(steps[first.at]) if first.at < len(steps) else 0
        token = int(trace.token[first.at]) if first.at < len(trace.token) else -1
        finding = Finding(request.request_id, step, f"token {token}, number {first.at + 1}: {first.reason}")
    return _Read(len(trace.token), len({item.at for item in result}), finding)


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    requests = evidence.candidate.requests
    structured = [request for request in requests if request.trace.header.sampling.structured is not None]
    usual = next((account for request in structured if (account := account_of(request.trace)) is not None), {})
    read = [_read(request, usual) for request in structured]
    findings = [item.finding for item in read if item.finding is not None]
    silent = sum(item.silent for item in read)
    n, wrong = sum(item.tokens for item in read), sum(item.wrong for item in read)
    if findings:
        verdict, summary = Verdict.FAULT, f"{wrong} of {n} tokens have a wrong mask, or a wrong account of it"
    elif silent:
        verdict, summary = (
            Verdict.INCONCLUSIVE,
            f"{silent} of {len(read)} answers have no second account of their masks",
        )
    else:
        verdict = Verdict.CERTIFIED
        summary = (
            f"all {n} masks are the grammar's after the tokens before them, at most {upper_bound(0, n):.2g} are not"
        )
    return counted(verdict, summary, n, wrong, findings, {"answers": len(read), "without_account": silent})


CHECK = Check(
    name="constraint_replay",
    claim="constraint",
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every deciding row has the grammar's mask after the emitted tokens before it",
    effect="share of tokens under a wrong mask",
    covers=frozenset({Group.EVENTS}),
)
