"""The first divergences of a run from its baselines, one by one, with the triage of the check that judged them.

Only arms with an equality check have divergences: where a rule draws independently of the baseline, other tokens are
no fault. A divergence is triaged as `audit.evidence.divergence.triage` does it, against the noise bound that the stored
result states, so that a page and its check agree. At most `MOST` per arm are shown; `Choice` says which.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from audit.errors import CannotDecide
from audit.evidence.divergence import coupled, greedy
from audit.evidence.divergence.triage import Instrument, baseline_fault, triage
from audit.evidence.pairing import Divergence, MarginNoise, Pair, divergence
from audit.evidence.records import RequestRecord
from audit.evidence.verdicts import Verdict
from audit.report.requests.choice import Choice, NamedFinding, chosen
from audit.report.requests.pieces import Pieces
from audit.report.requests.request_view import MOST_PIECE, anchor_of
from audit.store import RequestKey, Store, StoredArm, StoredCheck, StoredRun
from audit.store.reading.figures import ArmPairs
from audit.text.unsafe import shortened

MOST: Final = 6
"""Most divergences of an arm that a page shows."""
BEFORE: Final = 16
AFTER: Final = 14
"""Tokens shown before and after the place where two continuations part."""
LEADS: Final = 2_000
"""Most leads of an arm that a page draws."""
INSTRUMENTS: Final[Mapping[str, Instrument]] = {
    "greedy_equality": greedy.INSTRUMENT,
    "coupled_equality": coupled.INSTRUMENT,
}
"""The checks of equal tokens, with their measurement of leads."""
KINDS: Final[Mapping[str, str]] = {
    "numerical": "A near-tie: the baseline's own lead there is within the noise bound, so rounding explains it.",
    "real": "The lead is larger than the noise bound, or the answers end differently: a fault of the candidate.",
    "untriaged": "The lead or the noise bound is not on record, so nobody can tell rounding from a fault.",
    "baseline": "The baseline's own row prefers the candidate's token: a fault of the baseline.",
}
"""Meaning by kind."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """How one arm went on: its differing token, what follows it, how long it is and why it ended.

    token, text: None where it has no token there. after: the text that follows, None if texts are not known.
    margin: lead of its token over the next best score of its own row, None if not on record.
    """

    arm: str
    token: int | None
    text: str | None
    after: str | None
    left: int
    length: int
    finish: str
    margin: float | None


@dataclass(frozen=True, slots=True)
class ShownDivergence:
    """One divergence. `lead` is that of the baseline's token over the candidate's; `why` says why it cannot be shown.

    index: the first differing token, from 0. step: the candidate's step that emitted it.
    """

    request: str
    anchor: str
    findings: tuple[NamedFinding, ...]
    kind: str = ""
    lead: float | None = None
    index: int = 0
    step: int = 0
    ended: bool = False
    before: str | None = None
    sides: tuple[Continuation, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class ArmDivergences:
    """One arm with an equality check. `leads`: those of its divergences, at most `LEADS`, as the check stored them.

    counts: divergences by kind, as the check counted them. noise: the bound of the stored result, None without one.
    """

    arm: StoredArm
    baseline: str
    check: StoredCheck
    pairs: ArmPairs
    counts: Mapping[str, int]
    noise: MarginNoise | None
    unit: str
    leads: tuple[float, ...]
    choice: Choice
    shown: tuple[ShownDivergence, ...]


@dataclass(frozen=True, slots=True)
class RunDivergences:
    """The arms that an equality check judged, and the other candidates with the reason."""

    arms: tuple[ArmDivergences, ...]
    silent: tuple[tuple[str, str], ...]


def run_divergences(
    store: Store,
    run: StoredRun,
    checks: Sequence[StoredCheck],
    pieces: Pieces,
    findings: Mapping[str, tuple[NamedFinding, ...]],
) -> RunDivergences:
    """The divergences of a run. Reads the traces of those that it shows, and no others."""
    arms, silent = [], []
    for arm in run.candidates:
        check = next((one for one in checks if one.arm == arm.name and one.check in INSTRUMENTS), None)
        baseline = arm.spec.get("baseline")
        if check is None or baseline is None:
            silent.append((arm.name, "no check compares its tokens with those of a baseline"))
        elif check.verdict is Verdict.NOT_RUN:
            silent.append((arm.name, check.summary))
        else:
            arms.append(_arm(_Reading(store, run, pieces, findings), arm, str(baseline), check))
    return RunDivergences(tuple(arms), tuple(silent))


@dataclass(frozen=True, slots=True)
class _Reading:
    store: Store
    run: StoredRun
    pieces: Pieces
    findings: Mapping[str, tuple[NamedFinding, ...]]

    def request(self, arm: str, key: RequestKey) -> RequestRecord:
        """One request; raises CannotDecide: its content was erased or is damaged."""
        record = self.store.load_arm(self.run.ulid, arm, [RequestKey(arm, key.case_id, key.sample)])
        (request,) = (*record.requests, *record.failed, *record.refused)
        return request


def _arm(reading: _Reading, arm: StoredArm, baseline: str, check: StoredCheck) -> ArmDivergences:
    figures, run = reading.store.figures, reading.run.ulid
    parted = figures.parted(run, arm.name, baseline)
    choice = chosen(parted, list(reading.findings), most=MOST, most_named=MOST)
    noise, instrument = _noise(check), INSTRUMENTS[check.check]
    return ArmDivergences(
        arm=arm,
        baseline=baseline,
        check=check,
        pairs=figures.pairs(run, arm.name, baseline),
        counts=dict(check.details.get("divergences", {})),
        noise=noise,
        unit=instrument.unit,
        leads=tuple(float(lead) for lead in check.details.get("leads", [])[:LEADS]),
        choice=choice,
        shown=tuple(_shown(reading, key, baseline, noise or NO_NOISE, instrument) for key in choice.keys),
    )


NO_NOISE: Final = MarginNoise(0, 0.0, 0.0, 0)


def _noise(check: StoredCheck) -> MarginNoise | None:
    """The noise that a stored result states; None if its check stopped before it measured any."""
    details = check.details
    if "noise_bound" not in details:
        return None
    return MarginNoise(
        int(details.get("noise_positions", 0)),
        float(details["noise_bound"]),
        float(details.get("noise_quantile") or 0.0),
        int(details.get("control_flips", 0)),
        bool(details.get("noise_given", False)),
    )


def _shown(
    reading: _Reading, key: RequestKey, baseline: str, noise: MarginNoise, instrument: Instrument
) -> ShownDivergence:
    named = ShownDivergence(key.name, anchor_of(key.name), reading.findings.get(key.name, ()))
    try:
        pair = Pair(reading.request(key.arm, key), reading.request(baseline, key))
    except CannotDecide as error:
        return replace(named, why=str(error))
    parted = divergence(pair)
    if parted is None:
        return replace(named, why="The records agree; the row does not.")
    wrong = baseline_fault(pair.baseline, instrument)
    judged = triage(parted, noise, instrument, {} if wrong is None else {pair.baseline.request_id: wrong.places})
    parted = judged.divergence
    before = parted.pair.candidate.tokens[max(0, parted.index - BEFORE) : parted.index]
    return replace(
        named,
        kind=judged.kind,
        lead=judged.lead,
        index=parted.index,
        step=parted.step,
        ended=parted.ended,
        before=_text(before, reading.pieces),
        sides=tuple(_continuations(parted, reading.pieces, (key.arm, baseline))),
    )


def _continuations(parted: Divergence, pieces: Pieces, arms: Sequence[str]) -> Iterator[Continuation]:
    at = parted.index
    for arm, request in zip(arms, (parted.pair.candidate, parted.pair.baseline), strict=True):
        token = request.tokens[at] if at < len(request.tokens) else None
        margin = request.trace.margin
        yield Continuation(
            arm=arm,
            token=token,
            text=None if token is None else _text([token], pieces),
            after=_text(request.tokens[at + 1 : at + 1 + AFTER], pieces),
            left=max(0, len(request.tokens) - at - 1 - AFTER),
            length=len(request.tokens),
            finish=str(request.finish_reason),
            margin=float(margin[at]) if at < len(margin) and not math.isnan(margin[at]) else None,
        )


def _text(tokens: Sequence[int], pieces: Pieces) -> str | None:
    """Their text; their ids if texts are not known."""
    if pieces.text is None:
        return " ".join(f"[{token}]" for token in tokens)
    return "".join(shortened(pieces.text(token), MOST_PIECE) for token in tokens)
