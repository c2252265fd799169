"""The page of a reproducer: verdict, what was left out, how to run it, and versions.

Knows nothing about where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.evidence.verdicts import CheckResult, Verdict
from audit.minimize.sampling import set_names
from audit.minimize.search import SearchResult
from audit.minimize.start import MinimizeStart
from audit.minimize.steps import MOST_PROMPTS, keys_of
from audit.runs.prepare import PreparedRun
from audit.suite.spec import Case, Suite
from engine.core.types import SamplingParams

MOST_FINDINGS: Final = 3
MOST_TOKENS: Final = 32
"""Of a prompt on the page; the prompt file has all."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """What the page is made of."""

    start: MinimizeStart
    found: SearchResult
    prepared: PreparedRun
    results: Sequence[CheckResult]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table of what was made smaller."""

    what: str
    before: str
    after: str


def page_of(told: PageContent) -> str:
    """The page, as Markdown."""
    start = told.start
    parts = [
        [f"# {start.fault.check}: a small reproducer"],
        _verdict(told),
        _sizes(told),
        _how(told),
        _versions(told),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def rows(start: MinimizeStart, found: SearchResult) -> list[TableRow]:
    """The run's arm beside the reproducer."""
    before, after = start.suite, found.suite
    count = len(keys_of(before))
    rows = [
        TableRow("requests", str(count), str(len(keys_of(after)))),
        TableRow("prompt", f"{start.prompt} tokens", "; ".join(_length(case) for case in after.cases[:MOST_FINDINGS])),
    ]
    for name, read in _SETTINGS.items():
        rows.append(TableRow(name, read(before), read(after)))
    return [row for row in rows if row.before or row.after]


def _length(case: Case) -> str:
    if case.tokens:
        return f"{len(case.tokens)} token" + ("" if len(case.tokens) == 1 else "s")
    texts = [case.prompt] if case.prompt is not None else [str(each.get("content") or "") for each in case.messages]
    return f"{sum(map(len, texts))} characters"


def _neighbour(suite: Suite) -> str:
    beside = suite.arms[0].beside
    return "" if beside is None else f"{_sampling(beside)}; max_new_tokens {beside.max_new_tokens}"


def _sampling(params: SamplingParams) -> str:
    return ", ".join(f"{name} {_plain(getattr(params, name))}" for name in set_names(params)) or "greedy"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_SETTINGS: Final[Mapping[str, Callable[[Suite], str]]] = {
    "max_new_tokens": lambda suite: str(suite.arms[0].sampling.max_new_tokens),
    "gamma": lambda suite: str(suite.arms[0].proposer.gamma),
    "batch_size": lambda suite: str(suite.batch_size),
    "beside": _neighbour,
    "sampling": lambda suite: _sampling(suite.arms[0].sampling),
}


def reproduces(results: Sequence[CheckResult]) -> str:
    """How often the verdict came again."""
    times = sum(each.verdict is Verdict.FAULT for each in results)
    return f"reproduces {times} of {len(results)} times"


def _verdict(told: PageContent) -> list[str]:
    result = next((each for each in told.results if each.verdict is Verdict.FAULT), told.results[0])
    lines = [
        f"Check `{told.start.fault.check}`, arm `{told.start.fault.arm}`: **{result.verdict.value}**, "
        f"{reproduces(told.results)} from these files.",
        "",
        f"> {_inline(result.summary)}",
    ]
    findings = [f"* `{each.request}` step {each.step}: {_inline(each.message)}" for each in result.findings]
    return [*lines, "", *findings[:MOST_FINDINGS]]


def _inline(text: str) -> str:
    """Text of an engine on one line, so that it makes no headings and no tables."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _sizes(told: PageContent) -> Iterator[str]:
    yield f"| | run {told.start.run.ulid} | here |"
    yield "|---|---|---|"
    for row in rows(told.start, told.found):
        yield f"| {row.what} | {row.before or '-'} | {row.after or '-'} |"
    yield ""
    yield f"Found in {told.found.trials} trials, {told.found.tokens} tokens. {minimal(told.found)}"
    if only_just(told.start, told.found):
        yield ""
        yield CUT_DOWN


CUT_DOWN: Final = (
    "The requests were cut down until the verdict was only just there. Effect, bounds and p-values here are no "
    "estimate of anything; the run's are."
)


def only_just(start: MinimizeStart, found: SearchResult) -> bool:
    """Whether the verdict rests on how many tokens there are."""
    return start.by_chance or not found.alone


def minimal(found: SearchResult) -> str:
    """What may still go."""
    if not found.complete:
        return "The limit of trials or tokens was reached before everything was tried; more may go."
    if len(keys_of(found.suite)) > MOST_PROMPTS:
        return "No request or sampling parameter can be left out alone; prompts are as they were."
    return "No request, part of a prompt or sampling parameter can be left out alone."


def _how(told: PageContent) -> list[str]:
    lines = ["```", "audit run suite.yaml", "```", "", f"From request `{told.start.request}`."]
    for case in told.found.suite.cases[:MOST_FINDINGS]:
        if 0 < len(case.tokens) <= MOST_TOKENS:
            lines.append(f"Prompt of `{case.id}` as token ids: {', '.join(map(str, case.tokens))}.")
    return lines


def _versions(told: PageContent) -> Iterator[str]:
    here, then = told.prepared.environment, told.start.run.environment
    yield "| what ran | |"
    yield "|---|---|"
    for model in told.prepared.models:
        yield f"| model `{model.name}` | `{_inline(model.source)}` sha256:{model.sha256[:16]} |"
    yield f"| backend | {told.found.suite.backend} |"
    for name, version in here.packages.items():
        yield f"| {name} | {version} |"
    commit = here.code.get("commit")
    yield f"| code | {commit or here.code.get('version') or 'unknown'} |"
    yield f"| environment | {'the run' if here.sha256 == then.sha256 else 'another than the run'}'s |"
