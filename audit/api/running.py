"""Runs a suite from Python, as `audit run` does. Prints nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from audit.api.reading import RunResult, StoreView
from audit.errors import ENGINE, UserError, needs
from audit.evidence.environment import use_threads
from audit.runs.interim_looks import RunStopRule
from audit.runs.prepare import prepare, require_engines
from audit.runs.reused_baseline import reused_run
from audit.runs.runner import Progress, Quiet
from audit.runs.runner import run as run_prepared
from audit.store import Store, default_url
from audit.suite.allowances import NOTHING, Allowances, configured
from audit.suite.loader import load_suite

if TYPE_CHECKING:
    from audit.suite.spec import Suite


def run(
    suite: Suite | str | Path,
    store: str | None = None,
    *,
    baseline: str | None = None,
    max_tokens: int | None = None,
    threads: int = 1,
    progress: Progress | None = None,
    allowed: Allowances = NOTHING,
) -> RunResult:
    """Run a suite, store the evidence and judge it.

    Args:
        suite: a loaded suite, the path of a YAML file, or the name of a packaged suite.
        store: path or URL; by default `AUDIT_STORE`, else the store in the user's data folder. Created if missing.
        baseline: a finished run of the same store whose plain arms are reused (`--baseline`).
        max_tokens: token limit; the suite repeats until it is decided (`--until decided --max-tokens`).
        threads: number of torch threads.
        progress: receives arms and requests as they run.
        allowed: what the suite may touch besides what the user's configuration allows (the --allow options).

    Raises:
        UserError: the suite cannot run, or would touch more than is allowed.
        CannotDecide: evidence is missing.
        audit.runs.interruptions.Interrupted: the user stopped the run; `audit resume` continues it.
    """
    if baseline is not None and max_tokens is not None:
        raise UserError("baseline and max_tokens exclude each other: a stored run has no fresh requests")
    loaded = load_suite(suite) if isinstance(suite, str | Path) else suite
    # after parsing: an invalid suite fails without loading torch, which takes seconds
    use_threads(threads)
    url = store or default_url()
    earlier = None
    if baseline is not None:
        with Store.open(url, create=False, read_only=True) as opened:
            earlier = reused_run(opened, baseline)
    with needs("engine", ENGINE):
        prepared = prepare(loaded, earlier, allowed + configured())
    rule = None if max_tokens is None else RunStopRule(max_tokens)
    require_engines(prepared)
    with Store.open(url, create=True) as opened:
        outcome = run_prepared(prepared, opened, progress or Quiet(), rule)
    return RunResult(outcome.run, StoreView(url))
