"""Production's questions to a run, answered from its evidence or named as missing.

An answer says what the record shows; whether that is enough is the reader's decision, except where the reader states a
number of production: its concurrency or its longest context. Nothing is measured here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.report.tables.acceptance import RunAcceptance, run_acceptance
from audit.store import ArtifactRef, Store, StoredArm, StoredCheck, StoredRun
from audit.store.reading.figures import ArmLengths
from audit.store.reading.watches import StoredWatch, WatchReading

SHORT: Final = 16
"""Tokens of a short answer."""
ENOUGH: Final = 20
"""Short answers that an answer about them needs."""
TAIL: Final = 100
"""Requests that a 99th percentile needs: with fewer it is the slowest request."""
SAME_TOKENS: Final = ("greedy_equality", "coupled_equality", "same_seed")
SAME_LAW: Final = ("law", "token_law", "two_sample")
QUANTISED: Final = ("awq", "gptq", "fp8", "int8", "int4", "nf4", "q4", "q5", "q6", "q8", "quant")
EXPERTS: Final = ("moe", "mixtral", "experts")


class Standing(StrEnum):
    """How far a run's evidence answers a question."""

    SHOWN = "shown"
    SHORT = "short"
    """Something is on record, but not what the question asks for."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One question with its answer; `next` says what would answer it, empty if it is answered."""

    key: str
    question: str
    standing: Standing
    answer: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of an item that a run's evidence gives."""

    standing: Standing
    answer: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Production:
    """The reader's statement on production: requests at once and tokens of the longest context; None if unstated."""

    concurrency: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class ChecklistFacts:
    """All that the answers are made from."""

    run: StoredRun
    checks: tuple[StoredCheck, ...]
    acceptance: RunAcceptance
    lengths: Mapping[str, ArmLengths]
    watches: tuple[StoredWatch, ...]
    readings: tuple[WatchReading, ...]
    production: Production

    @property
    def candidates(self) -> tuple[StoredArm, ...]:
        """The candidate arms with requests."""
        return tuple(arm for arm in self.run.candidates if arm.counts.requests)

    @property
    def own_lengths(self) -> tuple[ArmLengths, ...]:
        """The lengths of the candidate arms."""
        return tuple(self.lengths[arm.name] for arm in self.candidates if arm.name in self.lengths)

    def results(self, *names: str) -> tuple[StoredCheck, ...]:
        """The results of checks on candidate arms."""
        own = {arm.name for arm in self.candidates}
        return tuple(check for check in self.checks if check.check in names and check.arm in own)


def checklist(store: Store, run: str, production: Production = Production()) -> tuple[ChecklistItem, ...]:
    """The answers for a run, in the order of `QUESTIONS`."""
    facts = _facts(store, run, production)
    return tuple(ChecklistItem(key, question, **asdict(answer(facts))) for key, (question, answer) in QUESTIONS.items())


def _facts(store: Store, run: str, production: Production) -> ChecklistFacts:
    loaded, checks = store.load_run(run), store.checks(run)
    watches = tuple(watch for watch in store.watches.all() if watch.settings.run == run)
    return ChecklistFacts(
        run=loaded,
        checks=checks,
        acceptance=run_acceptance(store, loaded, checks),
        lengths={row.arm: row for row in store.figures.lengths(run, SHORT)},
        watches=watches,
        readings=tuple(reading for watch in watches for reading in store.watches.readings(watch.id)),
        production=production,
    )


def traffic(facts: ChecklistFacts) -> Answer:
    """Acceptance on the reader's own traffic: a watch of the server, or prompts that are not the packaged ones."""
    used = [reading for reading in facts.readings if reading.gap is None and reading.label is None and reading.drafted]
    if used:
        drafted, accepted = (sum(getattr(item, name) or 0 for item in used) for name in ("drafted", "accepted"))
        alarms = sum(item.alarm is not None for item in used)
        words = f"a watch against this run counted {accepted} of {drafted} drafted tokens as accepted"
        return Answer(Standing.SHOWN, f"{words} ({accepted / drafted:.3f}), alarms: {alarms}")
    hint = "run a suite on prompts of your traffic, or follow the server: audit watch URL --run RUN"
    rates = [f"{arm.arm.name} {arm.rate:.3f}" for arm in facts.acceptance.arms if arm.rate is not None]
    if not rates:
        return Answer(Standing.MISSING, "no arm has drafts on record", hint)
    names = ", ".join(str(entry["name"]) for entry in facts.run.suite_document.get("workloads", ()))
    words = f"accepted per drafted token on the suite's workloads ({names}): {', '.join(rates)}"
    return Answer(Standing.SHORT, words, f"if these are not your traffic, {hint}")


def concurrency(facts: ChecklistFacts) -> Answer:
    """Requests at once in the largest batch of a candidate arm."""
    sizes = [int(arm.effective.rows or arm.spec.get("rows") or 0) for arm in facts.candidates]
    most, wanted = max(sizes, default=0), facts.production.concurrency
    if not most:
        words = "no candidate arm says how many requests ran at once"
        return Answer(Standing.MISSING, words, "set batch_size in the suite")
    words = f"up to {most} {'requests' if most > 1 else 'request'} at once"
    if wanted is None:
        return Answer(Standing.SHORT, words, "state production's number: --concurrency N")
    if most < wanted:
        hint = f"run the suite with batch_size {wanted}"
        return Answer(Standing.SHORT, f"{words}, production has {wanted}", hint)
    return Answer(Standing.SHOWN, f"{words}, production has {wanted}")


def tail_latency(facts: ChecklistFacts) -> Answer:
    """The 99th percentile of candidates beside their baselines'."""
    result, least = [], 0
    by_arm = {row.arm: row for row in facts.acceptance.latencies}
    for arm in facts.candidates:
        ours, theirs = by_arm.get(arm.name), by_arm.get(str(arm.spec.get("baseline")))
        if ours is not None and theirs is not None:
            least = min(least or ours.requests, ours.requests, theirs.requests)
            result.append(f"{arm.name} {ours.p99 / 1e3:.0f} ms, its baseline {theirs.p99 / 1e3:.0f} ms")
    hint = f"repeat the requests (samples) until each arm has {TAIL}"
    if not result:
        return Answer(Standing.MISSING, "no arm was timed beside its baseline", hint)
    words = f"P99 of a request: {'; '.join(result)}"
    if least < TAIL:
        return Answer(Standing.SHORT, f"{words}; of {least} requests, so it is the slowest one", hint)
    return Answer(Standing.SHOWN, words)


def pins(facts: ChecklistFacts) -> Answer:
    """Versions and digests that a deployment can be held to."""
    run, models = facts.run, [artifact for artifact in facts.run.artifacts if artifact.kind in ("target", "draft")]
    loose = [model.role for model in models if not _pinned(model)]
    words = "; ".join(
        [
            f"{len(run.environment.packages)} package versions (digest {run.environment.sha256[:12]})",
            *(f"{model.role} {model.sha256[:12]}" for model in models if _pinned(model)),
            *(f"{arm.name} {arm.configuration_sha256[:12]}" for arm in facts.candidates),
        ]
    )
    if loose:
        hint = "name the files' folder as the target (audited over HTTP, a server shows only a name)"
        return Answer(Standing.SHORT, f"{words}; no digest of {', '.join(loose)}", hint)
    return Answer(Standing.SHOWN, words)


def _pinned(model: ArtifactRef) -> bool:
    return bool(model.manifest.get("files"))


def short_answers(facts: ChecklistFacts) -> Answer:
    """Answers that end before speculation pays."""
    count = sum(row.short for row in facts.own_lengths)
    hint = f"add prompts with short answers, at least {ENOUGH}"
    if not count:
        return Answer(Standing.MISSING, "no answer is that short", hint)
    drafted, accepted = (sum(getattr(row, name) or 0 for row in facts.own_lengths) for name in ("drafted", "accepted"))
    rate = f", {accepted} of {drafted} drafted tokens accepted" if drafted else ""
    words = f"{count} of {sum(row.requests for row in facts.own_lengths)} answers{rate}"
    return Answer(Standing.SHORT, words, hint) if count < ENOUGH else Answer(Standing.SHOWN, words)


def long_contexts(facts: ChecklistFacts) -> Answer:
    """The longest prompt with its answer, and the check of long contexts."""
    longest, wanted = max((row.longest for row in facts.own_lengths), default=0), facts.production.context
    if not longest:
        return Answer(Standing.MISSING, "no candidate arm has requests", "run the suite")
    checked = ", ".join(f"long_context {check.verdict.value} in {check.arm}" for check in facts.results("long_context"))
    words = f"up to {longest} tokens of prompt and answer; {checked or 'the check long_context has no result'}"
    if wanted is None:
        return Answer(Standing.SHORT, words, "state production's longest context: --context N")
    if longest < wanted or not checked:
        hint = f"add prompts of {wanted} tokens and the check long_context"
        return Answer(Standing.SHORT, f"{words}; production has {wanted}", hint)
    return Answer(Standing.SHOWN, f"{words}; production has {wanted}")


def kind_of_target(facts: ChecklistFacts) -> Answer:
    """The audited target: quantisation rounds and experts route otherwise, so evidence holds for one target."""
    target = next((artifact for artifact in facts.run.artifacts if artifact.kind == "target"), None)
    about = _described(target)
    hint = "name the deployed target's folder in the suite"
    if target is None or not about:
        return Answer(Standing.MISSING, "the record does not describe the target", hint)
    text = " ".join((target.name, *about.values())).lower()
    traits = [word for word, names in (("quantised", QUANTISED), ("experts", EXPERTS)) if any(n in text for n in names)]
    words = f"{target.name}: {', '.join(f'{name} {value}' for name, value in about.items())}"
    seen = f"by name {' and '.join(traits)}" if traits else "no sign of quantisation or experts"
    wanted = f"its evidence is this target's only; if production's differs, {hint}"
    return Answer(Standing.SHOWN, f"{words}; {seen}", "" if traits else wanted)


def _described(target: ArtifactRef | None) -> dict[str, str]:
    facts: Any = target.manifest.get("facts") if target is not None else None
    kept = ("architecture", "dtype", "quantization", "device")
    return {name: str(facts[name]) for name in kept if facts.get(name)} if isinstance(facts, Mapping) else {}


def fallback(facts: ChecklistFacts) -> Answer:
    """The engine without speculation: each candidate's baseline, with its verdict."""
    hint = "add greedy_equality, or coupled_equality or law above temperature 0,"
    alone = [arm.name for arm in facts.candidates if not _has_baseline(facts.run, arm)]
    results = facts.results(*SAME_TOKENS, *SAME_LAW)
    words = "; ".join(_verdicts(results)) or "no check compared speculation with the target alone"
    if alone:
        words = f"{words}; no baseline for {', '.join(alone)}"
    certified = {check.arm for check in results if check.verdict is Verdict.CERTIFIED}
    faults = any(check.verdict is Verdict.FAULT for check in results)
    lacking = [arm.name for arm in facts.candidates if arm.name not in certified]
    if not results:
        return Answer(Standing.MISSING, words, f"{hint} to the suite's arms")
    if faults or lacking:
        wanted = "the answers change" if faults else f"{hint} to {', '.join(lacking)}"
        return Answer(Standing.SHORT, words, wanted)
    return Answer(Standing.SHOWN, words)


def _has_baseline(run: StoredRun, arm: StoredArm) -> bool:
    baseline = run.arm(str(arm.spec.get("baseline")))
    return baseline is not None and baseline.kind is ArmKind.BASELINE


def _verdicts(results: Iterable[StoredCheck]) -> Iterator[str]:
    for check in results:
        kind = "the same tokens" if check.check in SAME_TOKENS else "the same distribution"
        yield f"{check.check} {check.verdict.value} in {check.arm} ({kind})"


QUESTIONS: Final[Mapping[str, tuple[str, Callable[[ChecklistFacts], Answer]]]] = {
    "traffic": ("Does it accept drafts on your own traffic?", traffic),
    "concurrency": ("Did it run at production's concurrency?", concurrency),
    "p99": ("Is the slowest hundredth faster too, not only the mean?", tail_latency),
    "pins": ("Are versions pinned: engine, target, draft?", pins),
    "short_answers": (f"Does it hold for answers of at most {SHORT} tokens?", short_answers),
    "long_contexts": ("Does it hold at production's longest context?", long_contexts),
    "target": ("Is the audited target the deployed one, quantised and with experts as in production?", kind_of_target),
    "fallback": ("Can speculation be switched off with the same answers, or the same distribution of them?", fallback),
}
"""By key: what production asks, and the reading of the answer."""
