"""A disclosure as sentences, and as the document that `schemas/disclosure.json` describes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.evidence.verdicts import Verdict
from audit.report.statements.disclosure import FORMAT, ArmDisclosure, AspectOutcome, AspectResult, Disclosure
from audit.store import StoredCheck
from audit.store.base.canonical import named
from audit.store.base.values import CountSource, RunStatus

EQUIVALENCES: Final[Mapping[str, str]] = {
    "bitwise": "the same tokens from the same bits (bitwise)",
    "token": "the same tokens, except where rounding decides a near tie (token)",
    "law": "the same distribution of outputs, not the same tokens (law)",
    "bounded": "a distribution at a bounded distance (bounded)",
    "none": "none",
}
"""Words for each expected equivalence."""
OUTCOMES: Final[Mapping[AspectOutcome, str]] = {
    AspectOutcome.CHANGED: "the evidence contradicts equivalence",
    AspectOutcome.UNDECIDED: "the evidence does not suffice",
    AspectOutcome.UNCHANGED: "no change was found within the bounds of the checks",
    AspectOutcome.UNTESTED: "not tested",
}
SOURCES: Final[Mapping[CountSource, str]] = {
    CountSource.RECORD: "counted from the recorded steps",
    CountSource.ANSWERS: "as the server's answers report",
    CountSource.COUNTERS: "from the server's counters, which include its other clients",
    CountSource.SERVER: "as the server states that it does not speculate",
    CountSource.UNKNOWN: "from an unknown source",
}
CHECK_FACTS: Final = ("check", "claim", "verdict", "level", "n", "bound", "margin", "summary")
SCOPE: Final = "Each result holds for the prompts, lengths, batch sizes and machine of this run."


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its sentences."""

    title: str
    sentences: tuple[str, ...]


def sections(statement: Disclosure) -> tuple[Section, ...]:
    """The page: the run, each candidate arm, waivers and limits."""
    arms = tuple(Section(f"Arm {part.arm.name}", tuple(_arm(part))) for part in statement.arms)
    return (
        Section(f"Speculative decoding in run {statement.results.run.ulid}", tuple(_run(statement))),
        *arms,
        Section("Waivers and limits", tuple(_limits(statement))),
    )


def document(statement: Disclosure) -> dict[str, Any]:
    """The statement as JSON: the facts, and the sentences made from them."""
    run = statement.results.run
    return {
        "version": FORMAT,
        "run": run.ulid,
        "suite": {"name": run.suite_name, "sha256": run.suite_sha256},
        "status": run.status.value,
        **named(run, "finished_at", "record_root"),
        "damage": statement.broken,
        "models": [named(used, "kind", "role", "name", "sha256") for used in statement.models],
        "arms": [_arm_document(part) for part in statement.arms],
        "waived": [named(waived, "text", "policy_sha256", "actor", "at") for waived in statement.waived],
        "statement": [
            {"title": section.title, "sentences": list(section.sentences)} for section in sections(statement)
        ],
    }


def _arm_document(part: ArmDisclosure) -> dict[str, Any]:
    arm, counts = part.arm, part.arm.counts
    return {
        "arm": arm.name,
        "configuration_sha256": part.arm.configuration_sha256,
        **named(arm, "lossless", "fault"),
        **asdict(part.settings),
        "requests": counts.requests,
        "directed_requests": counts.directed,
        "output_tokens": counts.output,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "counts_from": counts.source.value,
        "aspects": [
            {**named(aspect, "aspect", "outcome"), "checks": [named(check, *CHECK_FACTS) for check in aspect.checks]}
            for aspect in part.aspects
        ],
        "examined_too_seldom": [
            {"check": row.check, "situation": row.situation, "examined": row.examined, "required": row.least}
            for row in part.short
        ],
        "situations_never_met": None if part.absent is None else list(part.absent),
    }


def _run(statement: Disclosure) -> Iterator[str]:
    run = statement.results.run
    yield f"The suite is {run.suite_name}, sha256:{run.suite_sha256}."
    if run.finished_at is None or run.status is not RunStatus.FINISHED:
        yield f"The run is {run.status}, not finished, so its evidence is not complete."
    else:
        yield f"The run finished on {run.finished_at:%Y-%m-%d} at {run.finished_at:%H:%M:%S} UTC."
    for used in statement.models:
        role = used.kind if used.kind == used.role else f"{used.kind} {used.role}"
        yield f"The {role} is {used.name}, sha256:{used.sha256}."
    yield from _record(statement)
    broken = [part.arm.name for part in statement.arms if part.faults or part.arm.fault]
    if broken:
        share = f"{len(broken)} of {len(statement.arms)} arms"
        yield f"The evidence contradicts equivalence in {share}: {', '.join(broken)}."
    if all(part.silent for part in statement.arms):
        yield "The store holds no evidence about speculation in this run, so nothing is stated about its outputs."


def _record(statement: Disclosure) -> Iterator[str]:
    if statement.broken is not None:
        yield f"The record is damaged: {statement.broken}."
    elif statement.results.run.record_root is not None:
        root = statement.results.run.record_root
        if statement.recomputed:
            yield f"The record agrees with its root {root}, recomputed for this statement."
        else:
            yield f"The record has the root {root}, which was not recomputed for this page; audit db check does."
    for erased in statement.erasures:
        yield (
            f"The content of {erased.requests} requests and the findings of {erased.results} results were erased on "
            f"{erased.at:%Y-%m-%d}: {erased.reason}."
        )


def _arm(part: ArmDisclosure) -> Iterator[str]:
    arm = part.arm
    yield _speculation(part)
    yield f"The digest of its effective configuration is sha256:{part.arm.configuration_sha256}."
    if arm.fault:
        yield f"The engine is broken on purpose: {arm.fault}."
    yield from _counts(part)
    rule = part.settings.rule
    kind = "lossless" if arm.lossless else "lossy"
    yield f"The verification rule {rule} declares itself {kind}." if rule else f"The engine is declared {kind}."
    if part.settings.expected_equivalence is not None:
        yield f"The equivalence expected with plain decoding is {EQUIVALENCES[part.settings.expected_equivalence]}."
    yield from _conditions(part)
    if part.silent:
        yield "The store holds no result for this arm."
    for aspect in part.aspects:
        yield from _aspect(aspect)
    yield from _unexamined(part)


def _speculation(part: ArmDisclosure) -> str:
    settings = part.settings
    if not settings.speculation:
        return "Speculation was off."
    version = f", version {settings.proposer_version}" if settings.proposer_version else ", of unknown version"
    most = "an unstated number of" if settings.gamma is None else f"at most {settings.gamma}"
    shape = "as a chain" if settings.tree is None else f"as a tree with the options {settings.tree}"
    proposer = settings.proposer or "unnamed"
    return f"Speculation was on: the proposer {proposer}{version}, drafted {most} tokens per step, {shape}."


def _counts(part: ArmDisclosure) -> Iterator[str]:
    counts = part.arm.counts
    level = part.arm.level.name
    yield f"The arm answered {counts.requests} requests with {counts.output} tokens; its evidence has level {level}."
    if counts.directed:
        yield f"The auditor added {counts.directed} requests to bring about situations; no figure counts these."
    if counts.drafted is None or counts.accepted is None:
        yield "The numbers of drafted and accepted tokens are not known."
    elif part.settings.speculation:
        source = SOURCES[counts.source]
        yield f"The proposer drafted {counts.drafted} tokens and the target accepted {counts.accepted}, {source}."


def _conditions(part: ArmDisclosure) -> Iterator[str]:
    sampling: Mapping[str, Any] = part.arm.spec.get("sampling") or {}
    stated = [
        f"{name} {sampling[name]}" for name in ("temperature", "top_p", "top_k", "max_new_tokens") if name in sampling
    ]
    if stated:
        yield f"The requests had {', '.join(stated)}."


def _aspect(result: AspectResult) -> Iterator[str]:
    name = result.aspect.value.capitalize()
    if result.outcome is AspectOutcome.UNTESTED:
        checks = f" by {', '.join(check.check for check in result.checks)}" if result.checks else ""
        yield f"{name}: {OUTCOMES[result.outcome]}{checks}."
    else:
        yield f"{name}: {OUTCOMES[result.outcome]}."
    yield from (_result(check) for check in result.checks)


def _result(check: StoredCheck) -> str:
    summary = check.summary.rstrip(".")
    if check.verdict is Verdict.NOT_RUN:
        return f"{check.check} did not run: {summary}."
    bound = "" if check.bound is None else f"; bound {check.bound:.4g}"
    margin = "" if check.margin is None else f"; margin {check.margin:.4g}"
    evidence = f"level {check.level.name}; n {check.n}{bound}{margin}"
    return f"{check.check} ({check.claim}) is {check.verdict}; {evidence}: {summary}."


def _unexamined(part: ArmDisclosure) -> Iterator[str]:
    for row in part.short:
        yield (
            f"{row.check} examined the situation {row.situation} {row.examined} times, less often than the "
            f"{row.least} that it requires."
        )
    if part.absent is None:
        yield "The run does not record which situations its checks examined."
    elif part.absent:
        yield f"The arm never met these situations, so they are not tested: {', '.join(part.absent)}."


def _limits(statement: Disclosure) -> Iterator[str]:
    for waived in statement.waived:
        yield (
            f"A decision of {waived.at:%Y-%m-%d} by {waived.actor} under policy sha256:{waived.policy_sha256} let a "
            f"requirement pass: {waived.text}."
        )
    if not statement.waived:
        yield "No decision on this run let a requirement pass."
    yield SCOPE
