"""docs/engines.md: engine by method by claim, from results of the packaged suites.

``python -m docs.tools.engine_matrix RESULTS...`` reads results of `audit run --results`, keeps their verdicts
in docs/engines.json, and writes the tables between the marks of the page. Without results it writes the page again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.backends import REGISTRY

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "engines.md"
NUMBERS: Final = ROOT / "docs" / "engines.json"
BEGIN: Final = "<!-- engines -->"
END: Final = "<!-- end of engines -->"
SIZES: Final = ("ngram_size", "size_n", "n_match", "heads")
"""Ends of the options that a method's name leaves out."""
SERVED: Final = ", served"
"""End of the name of an engine behind an endpoint."""
SUITES: Final[Mapping[str, Sequence[str]]] = {
    "native": ("quickstart.yaml",),
    "transformers": ("transformers/*.yaml",),
    "onnxruntime_genai": ("onnxruntime/*.yaml",),
    "openvino_genai": ("openvino/*.yaml",),
    "mlx_lm": ("mlx/*.yaml",),
    "llama_cpp": ("llama_cpp/*.yaml",),
    "vllm": ("vllm/*.yaml",),
    **dict.fromkeys((f"{server}{SERVED}" for server in ("vllm", "llama.cpp", "mlx-lm")), ()),
}
"""By engine: its packaged suites. A served one runs suites of `audit probe`, or those of `openai` at its addresses."""
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "equality": ("equality", "bitwise"),
    "law": ("law",),
    "rows": ("rows", "closeness"),
    "parameters": ("parameters", "seed"),
    "accounting": ("accounting",),
    "text": ("decoding", "text"),
    "acceptance": ("acceptance",),
    "identity": ("identity",),
    "form": ("surface",),
    "record": ("configuration", "evidence", "replay", "transcript", "drafts"),
}
"""By column: the claims of its checks. Liveness and cost are of a run, not of a method."""

Numbers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Judged:
    """One verdict of one arm."""

    arm: str
    method: str
    check: str
    claim: str
    verdict: str


def kept(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs of one run."""
    run = results["run"]
    arms = {arm["name"]: arm for arm in run["arms"] if arm["kind"] == "candidate"}
    verdicts = [
        [check["arm"], check["check"], check["claim"], check["verdict"]]
        for check in results["checks"]
        if check["arm"] in arms
    ]
    engine = engine_of(run["suite_document"])
    return {
        "engine": engine,
        "date": run["finished_at"][:10],
        "version": version_of(engine, run, next(iter(arms.values()))),
        "exit": run["exit_code"],
        "methods": {name: method_of(arm["spec"]) for name, arm in arms.items()},
        "verdicts": sorted(verdicts),
    }


def engine_of(suite: Mapping[str, Any]) -> str:
    """The backend of a suite, or the server behind an endpoint."""
    backend = str(suite.get("backend", "native"))
    return f"{suite['engine'].get('server', backend)}{SERVED}" if backend == "openai" else backend


def version_of(engine: str, run: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """Name and version of the engine that ran."""
    effective = arm["effective"]
    if engine.endswith(SERVED):
        return f"{effective['server']} {effective.get('version') or 'of an unstated version'}"
    installed = effective.get("installed") or (effective.get("engine") or {}).get("installed")
    if installed:
        return f"{installed['distribution']} {installed['version']}"
    packages = run["environment"]["packages"]
    name = engine if engine in packages else "specaudit"
    return f"{name} {packages[name]}"


def method_of(spec: Mapping[str, Any]) -> str:
    """The proposer with the options that a suite gives it, but for sizes."""
    options = ", ".join(sorted(name for name in spec["options"] or {} if not name.endswith(SIZES)))
    return f"{spec['proposer']} ({options})" if options else str(spec["proposer"])


def short(run: str) -> str:
    """A suite's name without its engine's."""
    return run.rpartition(".")[2].removeprefix("vllm-")


def judged(numbers: Numbers, engine: str) -> list[Judged]:
    """Every verdict of an engine's runs."""
    return [
        Judged(f"{short(run)}: {arm}", entry["methods"][arm], *rest)
        for run, entry in sorted(numbers.items())
        if entry["engine"] == engine
        for arm, *rest in entry["verdicts"]
    ]


def cell(found: Sequence[Judged]) -> str:
    """What the checks of one method and column say: the worst first."""
    if not found:
        return "no check"
    for verdict in ("fault", "inconclusive", "not_run"):
        wrong = sorted({each.check for each in found if each.verdict == verdict})
        if wrong:
            return f"{verdict.replace('_', ' ')}: {', '.join(wrong)}"
    return "certified"


def table(numbers: Numbers) -> str:
    """Engines and methods by claims."""
    lines = ["| engine | method | " + " | ".join(COLUMNS) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
    for engine in SUITES:
        found = judged(numbers, engine)
        for method in sorted({each.method for each in found}):
            own = [each for each in found if each.method == method]
            cells = (cell([each for each in own if each.claim in claims]) for claims in COLUMNS.values())
            lines.append(f"| {engine} | `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def faults(numbers: Numbers) -> str:
    """One line per fault, with the arm that has it."""
    lines = ["| engine | method | check | suite: arm |", "|---|---|---|---|"]
    for engine in SUITES:
        wrong = [each for each in judged(numbers, engine) if each.verdict == "fault"]
        lines += [f"| {engine} | `{each.method}` | {each.check} | {each.arm} |" for each in wrong]
    return "\n".join(lines)


def runs(numbers: Numbers) -> str:
    """By engine: its version, the runs with dates and exit codes, and what did not run."""
    heads = ("engine", "version", "suite, date: exit code", "suites not run for this page", "methods in no run")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for engine in SUITES:
        entries = {run: entry for run, entry in sorted(numbers.items()) if entry["engine"] == engine}
        versions = ", ".join(sorted({entry["version"] for entry in entries.values()})) or "-"
        ran = ", ".join(f"{short(run)}, {entry['date']}: {entry['exit']}" for run, entry in entries.items())
        cells = (engine, versions, ran or "none", _absent(engine, entries), _idle(numbers, engine))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _absent(engine: str, entries: Mapping[str, Any]) -> str:
    """The packaged suites without results; of an engine without any, no names."""
    if not entries:
        return "any suite"
    done = {short(run) for run in entries}
    names = [path.stem for pattern in SUITES[engine] for path in sorted((ROOT / "suites").glob(pattern))]
    return ", ".join(name for name in names if name not in done) or "-"


def _idle(numbers: Numbers, engine: str) -> str:
    ran = {each.method.partition(" ")[0] for each in judged(numbers, engine)}
    offered = REGISTRY[engine].proposers if engine in REGISTRY else ()
    if not ran or offered is None:
        return "most [proposers](acceptance.md)" if ran else "all"
    return ", ".join(f"`{name}`" for name in offered if name not in ran) or "-"


def block(numbers: Numbers) -> str:
    """All tables, between the marks."""
    parts = (BEGIN, table(numbers), "## Faults", faults(numbers), "## Runs", runs(numbers), END)
    return "\n\n".join(parts)


def written(page: str, numbers: Numbers) -> str:
    """The page with these tables."""
    before, _, rest = page.partition(BEGIN)
    return before + block(numbers) + rest.partition(END)[2]


def main(paths: Iterable[str]) -> None:
    """Keep the verdicts of new results, and write the page; suites without new results keep theirs."""
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {}
    for path in paths:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        found, name = kept(results), results["run"]["suite_name"]
        served = found["engine"].endswith(SERVED)
        numbers[f"{found['engine']}.{name}" if served else name] = found
    NUMBERS.write_text(compact(numbers), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")


def compact(numbers: Numbers) -> str:
    """One line per suite."""
    lines = (f"{json.dumps(run)}: {json.dumps(numbers[run], sort_keys=True)}" for run in sorted(numbers))
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
