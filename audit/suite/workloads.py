"""Reads the entries of a suite's `workloads`: prompt files, and files of other tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.evidence.records import DIRECTED
from audit.suite.filters import PACKAGED
from audit.suite.prompts import TEMPLATE, Workload, WorkloadCases, read_prompts
from audit.suite.structured import require_tool_choices
from audit.suite.traffic.source import TrafficSource
from audit.text.documents import Document, packaged_file
from audit.text.unsafe import quoted
from engine import backends


def _source(entry: Mapping[str, Any]) -> TrafficSource:
    sample, mask = entry.get("sample", {}), entry.get("mask", False)
    kinds = tuple(mask) if isinstance(mask, list) else () if mask else None
    size = sample.get("size")
    seed = int(sample.get("seed", 0))
    return TrafficSource(entry["format"], entry.get("columns", {}), None if size is None else int(size), seed, kinds)


@dataclass(frozen=True, slots=True)
class WorkloadsParser:
    """Reads workloads of one suite for one backend; raises UserError with the line of the entry or of the row."""

    document: Document
    folder: Path
    backend: str

    def workload(self, index: int, entry: Mapping[str, Any]) -> Workload:
        """The entry with its file's path, its defaults taken from the suite."""
        key = "source" if "source" in entry else "prompts"
        if len(entry.keys() & {"source", "prompts"}) != 1:
            problem = "a workload needs either prompts, a prompt file, or source, a file of another tool; write one"
            raise self.document.error(("workloads", index), problem)
        prompts = entry["prompts"] if key == "prompts" else entry["source"]["file"]
        path: Path | None = self.folder / prompts
        if prompts.startswith(PACKAGED):
            path = packaged_file(prompts.removeprefix(PACKAGED))
        if path is None or not path.exists():
            problem = f"no prompt file {quoted(str(path or prompts))}; write a path from here, or suites:PATH"
            raise self.document.error(("workloads", index, key), problem)
        limit, name = entry.get("limit"), entry["name"]
        if name == DIRECTED:
            problem = f"the name {DIRECTED} is that of the requests that a run adds; write another one"
            raise self.document.error(("workloads", index, "name"), problem)
        choice = entry.get("tool_choice", self.document.data.get("tool_choice", "auto"))
        template = {**self.document.data.get(TEMPLATE, {}), **entry.get(TEMPLATE, {})}
        return Workload(
            name,
            path,
            entry.get("domain", name),
            None if limit is None else int(limit),
            choice,
            template,
            _source(entry["source"]) if key == "source" else None,
        )

    def cases(self, index: int, workload: Workload) -> WorkloadCases:
        """The cases of a workload that this backend can run."""
        place = ("workloads", index, "prompts" if workload.source is None else "source")
        if not workload.path.is_file():
            problem = f"{quoted(str(workload.path))} is not a file; name a JSONL file"
            raise self.document.error(place, problem)
        prompts = read_prompts(workload)
        given = next((case for case in prompts.cases if case.tokens), None)
        if given is not None and not backends.REGISTRY[self.backend].tokens:
            problem = f"backend {self.backend} takes text, case {quoted(given.id)} has tokens; write prompt or messages"
            raise self.document.error(place, problem)
        require_tool_choices(self.document, place, prompts.cases, self.backend)
        return prompts
