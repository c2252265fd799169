"""Text: the recorded text is the decoding of the recorded tokens.

Claim: decoding. Null: the text of every request is what its tokens decode to, cut
where a stop string begins. The backend decodes the final tokens a second time,
with the tokenizer alone and apart from the path that made the text, and records
the result (fact `decoded`); the check compares the two as texts. Statistic:
requests whose text differs; one is a fault, because a client reads the text and
not the tokens. Effect: their share; bound: its 99 % Clopper-Pearson upper bound.
A character that the last tokens leave incomplete (U+FFFD at the end) may be held
back. Cannot see: a tokenizer that decodes wrongly both times, wrong tokens, the
chunks of a stream, of which no backend records any, and which of two occurrences
of a stop string should have ended the text.
"""

from __future__ import annotations

from audit.checks.interface import Check, Design, NoEvidence, Params, needs_nothing
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect
from engine.backends.evidence import Part
from engine.core.types import FinishReason

DECODED = "decoded"
INCOMPLETE = "\ufffd"
MAX_FINDINGS = 20
QUOTED = 20
"""Characters of each text in a finding."""
UNDECODED = NoEvidence("the engine's tokens are not decoded a second time; the text has one account only")


def _applies(evidence: Evidence) -> str | None:
    return None if any(_decoded(each) is not None for each in evidence.candidate.requests) else UNDECODED


def _foresee(params: Params, design: Design) -> str | None:
    del params
    return None if design.shown.gives(Part.DECODED) else UNDECODED


def _decoded(request: RequestRecord) -> str | None:
    """The second decoding of all tokens; None if the backend made none."""
    found = request.trace.header.facts.get(DECODED)
    return found if isinstance(found, str) else None


def expected(request: RequestRecord, decoded: str) -> str:
    """The text that the tokens give: the whole decoding, or its part before the stop string that ended it."""
    stops = request.trace.header.sampling.stop if request.finish_reason is FinishReason.STOP else ()
    cut = request.text
    # the engine chooses which occurrence ends the text; the check asks that one begins there
    if decoded.startswith(cut) and any(decoded.startswith(stop, len(cut)) for stop in stops):
        return cut
    held_back = decoded.rstrip(INCOMPLETE)
    return held_back if cut == held_back else decoded


def _run(evidence: Evidence, params: Params) -> CheckResult:
    del params
    findings: list[Finding] = []
    n = silent = 0
    for request in evidence.candidate.requests:
        decoded = _decoded(request)
        silent += decoded is None
        if decoded is None:
            continue
        n += 1
        wanted = expected(request, decoded)
        if request.text != wanted:
            findings.append(Finding(request.request_id, 0, _difference(request.text, wanted)))
    bound = upper_bound(len(findings), n)
    verdict = Verdict.FAULT if findings else Verdict.INCONCLUSIVE if silent else Verdict.CERTIFIED
    return CheckResult(
        verdict=verdict,
        summary=_summary(n, len(findings), silent, bound),
        n=n,
        statistic=float(len(findings)),
        effect=len(findings) / n,
        bound=bound,
        detectable=replay_effect(n),
        findings=tuple(findings[:MAX_FINDINGS]),
        details={"not_decoded_again": silent},
    )


def _summary(n: int, wrong: int, silent: int, bound: float) -> str:
    if wrong:
        return f"{wrong} of {n} texts are not what their tokens decode to"
    if silent:
        return f"{silent} of {n + silent} requests were not decoded again; the other texts agree"
    return f"all {n} texts are what their tokens decode to, at most {bound:.2g} are not"


def _difference(text: str, wanted: str) -> str:
    pairs = enumerate(zip(text, wanted, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(text), len(wanted)))
    ours, theirs = (repr(whole[at : at + QUOTED]) for whole in (text, wanted))
    return f"the text has {ours} at character {at}, its tokens decode to {theirs}"


CHECK = Check(
    name="text",
    claim="decoding",
    needs=Level.L0,
    defaults={},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the text of every request is what its tokens decode to",
    effect="share of requests whose text differs",
    plan=needs_nothing,
)
