"""Writes the reproducer as a folder (suite, prompts and a page), loads it again and runs it twice.

The folder appears atomically. The page has the verdict, the reductions, how to run it, and versions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.errors import CannotDecide
from audit.evidence.verdicts import CheckResult, Verdict
from audit.minimize.search import SearchResult
from audit.minimize.shrink import set_names
from audit.minimize.start import MinimizeStart
from audit.minimize.steps import MOST_PROMPTS, keys_of
from audit.minimize.suite_writer import SUITE_FILE, files_of
from audit.runs.in_memory import all_evidence
from audit.runs.prepare import PreparedRun, prepare
from audit.suite.loader import load_suite
from audit.suite.spec import Case, Suite
from audit.text.documents import mistake
from audit.text.markdown import as_cell, as_code, as_it_is
from audit.text.staged_files import new_folder
from engine.core.errors import EngineError
from engine.core.types import SamplingParams

TIMES: Final = 2
PAGE: Final = "README.md"
MOST_FINDINGS: Final = 3
MOST_TOKENS: Final = 32
"""Longest prompt on the page in tokens; the prompt file has every prompt in full."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The inputs of the page."""

    start: MinimizeStart
    result: SearchResult
    prepared: PreparedRun
    results: Sequence[CheckResult]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of the table of reductions."""

    what: str
    before: str
    after: str


def page_of(content: PageContent) -> str:
    """The page, as Markdown."""
    start = content.start
    parts = [
        [f"# {start.fault.check}: a small reproducer"],
        _verdict(content),
        _sizes(content),
        _how(content),
        _versions(content),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def rows(start: MinimizeStart, result: SearchResult) -> list[TableRow]:
    """Compare the run's arm with the reproducer."""
    before, after = start.suite, result.suite
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
    texts = (
        [case.prompt] if case.prompt is not None else [str(message.get("content") or "") for message in case.messages]
    )
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
    "mixed": lambda suite: str(suite.mixed).lower(),
    "beside": _neighbour,
    "sampling": lambda suite: _sampling(suite.arms[0].sampling),
}


def reproduces(results: Sequence[CheckResult]) -> str:
    """State how often the verdict reproduced."""
    times = sum(result.verdict is Verdict.FAULT for result in results)
    return f"reproduces {times} of {len(results)} times"


def _verdict(content: PageContent) -> list[str]:
    result = next((other for other in content.results if other.verdict is Verdict.FAULT), content.results[0])
    lines = [
        f"Check {as_code(content.start.fault.check)}, arm {as_code(content.start.fault.arm)}: "
        f"**{result.verdict.value}**, "
        f"{reproduces(content.results)} from these files.",
        "",
        f"> {as_it_is(_line(result.summary))}",
    ]
    findings = [
        f"* {as_code(finding.request)} step {finding.step}: {as_it_is(_line(finding.message))}"
        for finding in result.findings
    ]
    return [*lines, "", *findings[:MOST_FINDINGS]]


def _line(text: str) -> str:
    return " ".join(text.split())


def _sizes(content: PageContent) -> Iterator[str]:
    yield f"| | run {content.start.run.ulid} | here |"
    yield "|---|---|---|"
    for row in rows(content.start, content.result):
        yield f"| {' | '.join(map(as_cell, (row.what, row.before or '-', row.after or '-')))} |"
    yield ""
    yield f"Found in {content.result.trials} trials, {content.result.tokens} tokens. {minimal(content.result)}"
    if only_just(content.start, content.result):
        yield ""
        yield CUT_DOWN


CUT_DOWN: Final = (
    "The search reduced the requests until the verdict was barely reached. Effect, bounds and p-values here are no "
    "estimates; use the run's."
)


def only_just(start: MinimizeStart, result: SearchResult) -> bool:
    """True if the verdict depends on the number of tokens."""
    return start.by_chance or not result.alone


def minimal(result: SearchResult) -> str:
    """State whether further reductions are possible."""
    if not result.complete:
        return "The search reached the limit of trials or tokens; further reductions may be possible."
    if len(keys_of(result.suite)) > MOST_PROMPTS:
        return "No single request or sampling parameter can be left out; the prompts are unchanged."
    return "No single request, part of a prompt or sampling parameter can be left out."


def _how(content: PageContent) -> list[str]:
    lines = ["```", "audit run suite.yaml", "```", "", f"From request {as_code(content.start.request)}."]
    for case in content.result.suite.cases[:MOST_FINDINGS]:
        if 0 < len(case.tokens) <= MOST_TOKENS:
            lines.append(f"Prompt of {as_code(case.id)} as token ids: {', '.join(map(str, case.tokens))}.")
    return lines


def _versions(content: PageContent) -> Iterator[str]:
    here, then = content.prepared.environment, content.start.run.environment
    yield "| what ran | |"
    yield "|---|---|"
    for model in content.prepared.models:
        yield f"| model {as_code(model.name)} | {as_code(model.source)} sha256:{model.sha256[:16]} |"
    yield f"| backend | {content.result.suite.backend} |"
    yield from (f"| {as_cell(name)} | {as_cell(version)} |" for name, version in here.packages.items())
    commit = here.code.get("commit")
    yield f"| code | {as_cell(str(commit or here.code.get('version') or 'unknown'))} |"
    yield f"| environment | {'equals' if here.sha256 == then.sha256 else 'differs from'} the run's |"


@dataclass(frozen=True, slots=True)
class SuiteRuns:
    """The results of the written suite, one per complete run."""

    prepared: PreparedRun
    results: tuple[CheckResult, ...]

    @property
    def faults(self) -> tuple[CheckResult, ...]:
        """The results with the verdict."""
        return tuple(result for result in self.results if result.verdict is Verdict.FAULT)


def require_free(folder: Path) -> None:
    """Reject an existing path, or one whose parent folder is missing.

    Raises:
        UserError: the path is not usable; the message has the fix.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise mistake(str(folder), None, "already exists; name another folder with --out")
    if not folder.absolute().parent.is_dir():
        raise mistake(str(folder), None, "its parent folder does not exist; create it")


def write(start: MinimizeStart, result: SearchResult, folder: Path, note: Callable[[str], None]) -> SuiteRuns:
    """Write the folder and run the written suite.

    Raises:
        UserError: the folder cannot be written.
        CannotDecide: the written suite cannot run.
    """
    head = f"{start.fault.check} finds a fault here, described in {PAGE}. Run it with: audit run {SUITE_FILE}"
    with new_folder(folder) as home:
        for name, content in files_of(result.suite, head).items():
            (home / name).write_bytes(content)
        checked = _checked(home / SUITE_FILE, start, note)
        page = PageContent(start, result, checked.prepared, checked.results)
        (home / PAGE).write_text(page_of(page), encoding="utf-8")
    return checked


def _checked(path: Path, start: MinimizeStart, note: Callable[[str], None]) -> SuiteRuns:
    suite = load_suite(path)
    try:
        prepared = prepare(suite, allowed=start.allowed)
        check, given = load(start.fault.check), prepared.suite.arms[0].checks[start.fault.check]
        results = tuple(evaluate(check, all_evidence(prepared.arms), given) for _ in range(TIMES))
    except EngineError as error:
        raise CannotDecide(f"the written reproducer cannot run: {error}") from error
    for number, result in enumerate(results, start=1):
        note(f"the reproducer from its files, run {number} of {TIMES}: {result.verdict}")
    return SuiteRuns(prepared, results)
