"""Writes the reproducer as a folder (suite, prompts and a page), loads it again and runs it twice.

The folder appears atomically.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.errors import CannotDecide
from audit.evidence.verdicts import CheckResult, Verdict
from audit.minimize.page import PageContent, page_of
from audit.minimize.search import SearchResult
from audit.minimize.start import MinimizeStart
from audit.minimize.suite_writer import SUITE_FILE, files_of
from audit.runs.in_memory import all_evidence
from audit.runs.prepare import PreparedRun, prepare
from audit.suite.loader import load_suite
from audit.text.documents import mistake
from engine.core.errors import EngineError

TIMES: Final = 2
PAGE: Final = "README.md"


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
    with _appearing(folder) as home:
        for name, content in files_of(result.suite, head).items():
            (home / name).write_bytes(content)
        checked = _checked(home / SUITE_FILE, start, note)
        page = PageContent(start, result, checked.prepared, checked.results)
        (home / PAGE).write_text(page_of(page), encoding="utf-8")
    return checked


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside the destination; it is renamed at the end."""
    try:
        home = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name[:60]}."))
    except OSError as error:
        raise mistake(str(folder), None, f"cannot be written ({error.strerror}); choose another place") from error
    try:
        yield home
        home.chmod(0o755)
        home.replace(folder)
    except OSError as error:
        raise mistake(str(folder), None, f"cannot be written ({error.strerror}); choose another place") from error
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _checked(path: Path, start: MinimizeStart, note: Callable[[str], None]) -> SuiteRuns:
    suite = load_suite(path)
    try:
        prepared = prepare(suite, allowed=start.allowed)
        results = tuple(_once(prepared, start.fault.check) for _ in range(TIMES))
    except EngineError as error:
        raise CannotDecide(f"the written reproducer cannot run: {error}") from error
    for number, result in enumerate(results, start=1):
        note(f"the reproducer from its files, run {number} of {TIMES}: {result.verdict}")
    return SuiteRuns(prepared, results)


def _once(prepared: PreparedRun, check: str) -> CheckResult:
    evidence = all_evidence(prepared.arms)
    return evaluate(load(check), evidence, prepared.suite.arms[0].checks[check])
