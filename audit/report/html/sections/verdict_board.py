"""The verdict board: every claim of every arm with its verdict, what follows from it, and what the gate decided."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from audit import checks as registry
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.report.html.registry import Nothing, ReportSection, ReportSource
from audit.report.tables.looks import left_lines, look_lines, next_steps
from audit.report.tables.results import SignedEntry
from audit.report.tables.verdicts import account_lines, conclusion, lossy_lines, waived_lines
from audit.store import StoredArm, StoredCheck, StoredDecision
from audit.store.reading.attestations import StoredAttestation

MEANINGS: Final[Mapping[Verdict, str]] = {
    Verdict.CERTIFIED: "An upper bound on the departure lies within the margin, on the prompts of this run.",
    Verdict.FAULT: "The evidence contradicts the claim; the findings name the places.",
    Verdict.INCONCLUSIVE: "The evidence shows neither, which is not a pass; more evidence of the same kind decides it.",
    Verdict.NOT_RUN: "The check lacks its evidence, or its claim does not exist for the arm; the result says which.",
}


@dataclass(frozen=True, slots=True)
class BoardClaim:
    """One check, and its result in each arm of the board; None where the arm did not ask for it."""

    check: str
    claim: str
    null: str
    results: tuple[StoredCheck | None, ...]


@dataclass(frozen=True, slots=True)
class StatementSignature:
    """A signed statement about the run: the type of its predicate, and the keys that it names."""

    kind: str
    keys: tuple[str, ...]
    payload_sha256: str
    at: str


@dataclass(frozen=True, slots=True)
class VerdictBoard:
    """Claims by arm, the run's conclusion, what helps an undecided run, and what was decided and signed."""

    exit_code: int | None
    word: str
    conclusion: str
    next_steps: tuple[str, ...]
    left: tuple[str, ...]
    remarks: tuple[str, ...]
    arms: tuple[StoredArm, ...]
    claims: tuple[BoardClaim, ...]
    counts: Mapping[str, int]
    meanings: Mapping[str, str]
    checks: tuple[StoredCheck, ...]
    decisions: tuple[StoredDecision, ...]
    signed: tuple[SignedEntry, ...]
    signatures: tuple[StatementSignature, ...]


def read(source: ReportSource) -> VerdictBoard | Nothing:
    """The verdicts of a run."""
    shown = source.results
    run, checks = shown.run, shown.checks
    if not checks:
        return Nothing("No check has judged this run yet, so there are no verdicts.")
    judged = {check.arm for check in checks}
    arms = tuple(arm for arm in run.arms if arm.kind is ArmKind.CANDIDATE or arm.name in judged)
    word, _, rest = conclusion(run.exit_code).partition(": ")
    remarks = (*lossy_lines(arms), *account_lines(arms), *waived_lines(checks), *look_lines(run, checks))
    return VerdictBoard(
        exit_code=run.exit_code,
        word=word,
        conclusion=rest,
        next_steps=tuple(next_steps(run, checks, source.store.url)),
        left=tuple(left_lines(checks)) if run.exit_code not in (0, None) else (),
        remarks=tuple(line for line in remarks if not line.startswith("left in ")),
        arms=arms,
        claims=tuple(_claims(arms, checks)),
        counts={verdict.value: sum(check.verdict is verdict for check in checks) for verdict in Verdict},
        meanings={verdict.value: text for verdict, text in MEANINGS.items()},
        checks=checks,
        decisions=shown.decisions,
        signed=shown.signed,
        signatures=tuple(map(_signature, source.store.attestations.of_run(source.run))),
    )


def _claims(arms: Iterable[StoredArm], checks: Iterable[StoredCheck]) -> Iterator[BoardClaim]:
    by_place = {(check.check, check.arm): check for check in checks}
    listed = tuple(arms)
    for name in sorted({check.check for check in by_place.values()}):
        results = tuple(by_place.get((name, arm.name)) for arm in listed)
        claim = next(result.claim for result in results if result is not None)
        yield BoardClaim(name, claim, null_of(name), results)


def null_of(check: str) -> str:
    """The claim of a check as a sentence; empty for a check that this version does not have."""
    loaded = registry.known(check)
    return "" if loaded is None else f"{loaded.null[:1].upper()}{loaded.null[1:]}."


def _signature(row: StoredAttestation) -> StatementSignature:
    keys = tuple(str(one.get("keyid", "")) for one in json.loads(row.envelope or "{}").get("signatures", []))
    return StatementSignature(row.predicate_type, keys, row.payload_sha256, f"{row.created_at:%Y-%m-%d %H:%M:%S} UTC")


SECTION: Final = ReportSection(
    "verdicts", "Verdict board", "Did speculation leave the output of the target model unchanged, claim by claim?", read
)
