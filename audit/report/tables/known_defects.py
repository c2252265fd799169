"""Defects of other engines that are known, beside the faults that they may explain.

A match says that engine, settings and check fit a known defect; it does not prove that the defect is the cause.
`docs/how-to/audit-vllm.md` describes each of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from audit.evidence.verdicts import Verdict
from audit.store import StoredArm, StoredCheck


@dataclass(frozen=True, slots=True)
class KnownDefect:
    """One defect.

    words: what goes wrong.
    upstream: the report, or that there is none.
    checks: checks that show it.
    fits: whether an arm's engine and settings have it.
    repair: the value of `engine: {repair: ...}` that replaces the code; None if there is none.
    """

    words: str
    upstream: str
    checks: frozenset[str]
    fits: Callable[[StoredArm], bool]
    repair: str | None = None


def defect_lines(arms: Iterable[StoredArm], checks: Iterable[StoredCheck]) -> list[str]:
    """One line per known defect that fits faults of a run, with the arms and checks."""
    faults: dict[str, set[str]] = {}
    for check in checks:
        if check.verdict is Verdict.FAULT:
            faults.setdefault(check.arm, set()).add(check.check)
    listed = [arm for arm in arms if arm.name in faults and arm.fault is None]
    return [line for defect in DEFECTS for line in _line(defect, listed, faults)]


def _line(defect: KnownDefect, arms: Iterable[StoredArm], faults: dict[str, set[str]]) -> Iterator[str]:
    places = [
        f"{arm.name} ({', '.join(sorted(defect.checks & faults[arm.name]))})"
        for arm in arms
        if defect.checks & faults[arm.name] and defect.fits(arm)
    ]
    if places:
        mend = f"; engine: {{repair: {defect.repair}}} replaces the code" if defect.repair else ""
        yield f"known: {defect.words} ({defect.upstream}), which fits {', '.join(places)}{mend}"


def _vllm(arm: StoredArm) -> bool:
    """True for vLLM 0.32 with a draft."""
    version = arm.effective.facts.get("installed")
    known = isinstance(version, dict) and str(version.get("version")).startswith("0.32.")
    return arm.effective.backend == "vllm" and known and bool(arm.effective.facts.get("speculative"))


def _worker(arm: StoredArm, key: str) -> Any:
    worker = arm.effective.facts.get("worker")
    return worker.get(key) if isinstance(worker, dict) else None


def _unrepaired(arm: StoredArm, repair: str) -> bool:
    return arm.effective.facts.get("repair") not in (repair, "all")


def _sampling(arm: StoredArm, key: str) -> Any:
    return (arm.spec.get("sampling") or {}).get(key)


def _samples(arm: StoredArm) -> bool:
    """True if a request of the arm's batches is sampled."""
    beside = arm.spec.get("beside") or {}
    return bool(_sampling(arm, "temperature") or beside.get("temperature"))


def _on_cpu(arm: StoredArm) -> bool:
    return _vllm(arm) and _worker(arm, "device") == "cpu" and _unrepaired(arm, "expand") and _samples(arm)


def _adapted(arm: StoredArm) -> bool:
    return _vllm(arm) and bool(arm.effective.facts.get("adapters"))


def _head(arm: StoredArm) -> bool:
    speculative = arm.effective.facts.get("speculative")
    return isinstance(speculative, dict) and speculative.get("method") in ("eagle", "eagle3", "mtp", "dflash")


DEFECTS: Final = (
    KnownDefect(
        "on a CPU, vLLM 0.32 reads temperature, top-k and top-p of drafted rows from uninitialised memory",
        "vllm-project/vllm#55005",
        frozenset({"honoured", "law", "greedy_equality", "accounting", "acceptance_theory", "seed", "two_sample"}),
        lambda arm: _on_cpu(arm) and not _sampling(arm, "top_k"),
        "expand",
    ),
    KnownDefect(
        "on a CPU, top_k ends the engine of vLLM 0.32 at a request's first step when a draft is configured",
        "no report found",
        frozenset({"liveness"}),
        lambda arm: _on_cpu(arm) and bool(_sampling(arm, "top_k")),
        "expand",
    ),
    KnownDefect(
        "the first model runner of vLLM 0.32 masks end tokens behind a draft by the answer's length before it",
        "vllm-project/vllm#32642 mended the rows before it",
        frozenset({"greedy_equality", "honoured", "law"}),
        lambda arm: (
            _vllm(arm)
            and _worker(arm, "model_runner") == "v1"
            and bool(_sampling(arm, "min_tokens"))
            and _unrepaired(arm, "min_tokens")
        ),
        "min_tokens",
    ),
    KnownDefect(
        "the first model runner of vLLM 0.32 has the standard rule only and ignores another one",
        "no report found",
        frozenset({"configuration"}),
        lambda arm: (
            _vllm(arm)
            and _worker(arm, "model_runner") == "v1"
            and arm.effective.requested.get("rejection_sample_method") == "block"
        ),
    ),
    KnownDefect(
        "drawn drafts of vLLM 0.32 use a generator that no request's seed sets",
        "a note in its source",
        frozenset({"seed"}),
        lambda arm: _vllm(arm) and _worker(arm, "draft_sample_method") == "probabilistic",
    ),
    KnownDefect(
        "vLLM 0.32 drops a drawn draft that a grammar forbids and draws its place from p instead of the residual",
        "no report found",
        frozenset({"law"}),
        lambda arm: (
            _vllm(arm)
            and _worker(arm, "draft_sample_method") == "probabilistic"
            and bool(_sampling(arm, "temperature"))
            and bool(_sampling(arm, "structured"))
        ),
    ),
    KnownDefect(
        "on a CPU, vLLM 0.32 serves a request without an adapter with the last adapter's weights",
        "vllm-project/vllm#48421",
        frozenset({"greedy_equality", "logprob_closeness"}),
        lambda arm: _adapted(arm) and _worker(arm, "device") == "cpu" and _unrepaired(arm, "base_rows"),
        "base_rows",
    ),
    KnownDefect(
        "a head of vLLM 0.32 that shares the target's embedding ends the engine beside adapters",
        "no report found",
        frozenset({"liveness"}),
        lambda arm: _adapted(arm) and _head(arm) and _unrepaired(arm, "shared_embedding"),
        "shared_embedding",
    ),
)
