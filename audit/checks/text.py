"""Text: the recorded text is the decoding of the recorded tokens.

Claim: decoding. Null: the text of every request is what its tokens decode to, cut where a stop string begins. The
backend decodes the final tokens a second time, apart from the path that made the text, and records the result (fact
`decoded`); the check compares the two as texts. For an endpoint the second decoding is that of the token ids that it
sent, or the joined tokens of its log-probabilities; a streamed answer is also read chunk by chunk. Statistic: requests
whose text differs; one is a fault, because a client reads the text and not the tokens. Effect: their share; bound: its
99 % Clopper-Pearson upper bound. A character that the last tokens leave incomplete (U+FFFD at the end) may be held
back. Cannot see: a tokenizer that decodes wrongly both times, wrong tokens, calls and reasoning that a server read out
of the text, and which of two occurrences of a stop string should have ended the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from audit.checks.base.interface import Check, gives
from audit.checks.base.wrong_units import counted
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.streams import QUOTED, stream_of
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from engine.backends.evidence import Part
from engine.core.sequences import agreeing
from engine.core.types import FinishReason
from engine.stream.holding import INCOMPLETE
from engine.stream.redaction import redact

DECODED = "decoded"
ONE_ACCOUNT = "the engine's tokens are not decoded a second time; the text has one account only"
IN_PARTS = "every answer is in parts, such as calls and reasoning, which no tokens decode to as one text"
BLANKS = "the tokens that the server names differ from the text in blanks only, which they may have lost"
BROKEN = "the tokens that the server names hold broken characters"


@dataclass(frozen=True, slots=True)
class SecondAccount:
    """The backend's account of one second decoding.

    text: the decoding of all tokens, without one that ended the answer.
    held: characters at its end that the engine may leave out.
    joined: it is made of single tokens' texts, in which blanks and broken characters may be lost.
    stop_shown: the text ends with the stop string instead of before it.
    ahead: numbers of the stream's chunks whose text the tokens so far do not decode to.
    """

    text: str
    held: int = 0
    joined: bool = False
    stop_shown: bool = False
    ahead: tuple[int, ...] = ()


def _applies(evidence: Evidence) -> str | None:
    requests = list(evidence.candidate.requests)
    if any(account_of(request) is not None for request in requests):
        return None
    facts = [request.trace.header.facts for request in requests]
    if facts and all("parts" in fact for fact in facts):
        return IN_PARTS
    reason = next((str(fact["undecoded"]) for fact in facts if "undecoded" in fact), None)
    return NoEvidence(ONE_ACCOUNT if reason is None else f"the text has one account only: {reason}")


def account_of(request: RequestRecord) -> SecondAccount | None:
    """The second decoding of all tokens; None if the backend made none."""
    facts = request.trace.header.facts
    text, more = facts.get(DECODED), facts.get("decoding", {})
    if not isinstance(text, str) or not isinstance(more, Mapping):
        return None
    return SecondAccount(
        text,
        held=int(more.get("held", 0)),
        joined=bool(more.get("joined", False)),
        stop_shown=bool(more.get("stop_shown", False)),
        ahead=tuple(more.get("ahead", ())),
    )


def expected(request: RequestRecord, account: SecondAccount) -> str:
    """The text that the tokens give: the whole decoding, or its part up to the stop string that ended it."""
    stream = stream_of(request.trace.header)
    if stream is not None and stream.decisions:
        # what filters took out, no_leak compares
        return redact(account.text[: stream.end], stream.redactions).text
    decoded, cut = account.text, request.text
    stops = request.trace.header.sampling.stop if request.finish_reason is FinishReason.STOP else ()
    # the engine chooses which occurrence ends the text; the check asks that there is one
    if decoded.startswith(cut) and any(_stopped(cut, decoded, stop, shown=account.stop_shown) for stop in stops):
        return cut
    held_back = (decoded.rstrip(INCOMPLETE), decoded[: len(decoded) - account.held])
    return cut if cut in held_back else decoded


def _stopped(cut: str, decoded: str, stop: str, *, shown: bool) -> bool:
    return cut.endswith(stop) if shown else decoded.startswith(stop, len(cut))


def _open(request: RequestRecord, account: SecondAccount) -> str | None:
    """Why a difference shows nothing about the text; None if it does."""
    if not account.joined:
        return None
    if INCOMPLETE in account.text:
        return BROKEN
    return BLANKS if "".join(account.text.split()) == "".join(request.text.split()) else None


@dataclass(frozen=True, slots=True)
class _Read:
    """One request: a finding, or why it is open; neither if its text is right."""

    finding: str | None = None
    silent: str | None = None


def _read(request: RequestRecord) -> _Read:
    account = account_of(request)
    if account is None:
        return _Read(silent=str(request.trace.header.facts.get("undecoded", ONE_ACCOUNT)))
    wanted = expected(request, account)
    if request.text != wanted:
        reason = _open(request, account)
        return _Read(silent=reason) if reason else _Read(_difference(request.text, wanted))
    if account.ahead:
        return _Read(f"the text up to chunk {account.ahead[0]} of the stream is not what its tokens so far decode to")
    return _Read()


def _run(evidence: Evidence, _params: Params) -> CheckResult:
    requests = evidence.candidate.requests
    # records load lazily, and a list of them would keep their traces
    read = {request.request_id: _read(request) for request in requests if "parts" not in request.trace.header.facts}
    findings = [Finding(name, 0, item.finding) for name, item in read.items() if item.finding is not None]
    silent = [item.silent for item in read.values() if item.silent is not None]
    n = len(read) - len(silent)
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE if silent else Verdict.CERTIFIED
    counts = {"not_decoded_again": len(silent), "in_parts": len(requests) - len(read)}
    summary = _summary(n, len(findings), silent, counts["in_parts"])
    return counted(verdict, summary, n, len(findings), findings, counts)


def _summary(n: int, wrong: int, silent: list[str], parts: int) -> str:
    if wrong:
        return f"{wrong} of {n} texts are not what their tokens decode to"
    if silent:
        return f"{len(silent)} of {n + len(silent)} texts have no second account ({silent[0]}); the others agree"
    beside = f"; {parts} answers in parts are not compared" if parts else ""
    return f"all {n} texts are what their tokens decode to, at most {upper_bound(0, n):.2g} are not{beside}"


def _difference(text: str, wanted: str) -> str:
    at = agreeing(text, wanted)
    ours, theirs = (repr(whole[at : at + QUOTED]) for whole in (text, wanted))
    return f"the text has {ours} at character {at}, its tokens decode to {theirs}"


CHECK = Check(
    name="text",
    claim="decoding",
    run=_run,
    applies=_applies,
    foresee=gives(Part.DECODED, NoEvidence(ONE_ACCOUNT)),
    null="the text of every request is what its tokens decode to",
    effect="share of requests whose text differs",
)
