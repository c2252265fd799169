"""Evaluation results of a model repository, `.eval_results/*.yaml`: the pointer is in the `notes` of each entry.

Its schema has no other free place. An entry that has notes keeps them, and a statement alone binds the file then.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, SequenceNode

from audit.attach.interface import PointedReport, decoded
from audit.errors import UserError
from audit.text.documents import parse_yaml

MARK: Final = "audited by specaudit "
NOTES: Final = "notes"


@dataclass(frozen=True, slots=True)
class EvalResults(PointedReport):
    """A list of results in block style; the repository names the model."""

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The pointer, if every entry carries the same."""
        notes = [str(entry.get(NOTES, "")) for entry in _entries(report)]
        if len(set(notes)) != 1 or not notes[0].startswith(MARK):
            return None
        block = json.loads(notes[0].removeprefix(MARK))
        return block if isinstance(block, Mapping) else None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The file with notes in every entry; every other byte is unchanged."""
        if any(NOTES in entry for entry in _entries(report)):
            raise ValueError("an entry has notes of its own")
        lines = decoded(report).splitlines(keepends=True)
        for line, indent in reversed(list(_ends(report))):
            if not lines[line - 1].endswith("\n"):
                raise ValueError("its last line has no end")
            lines.insert(line, _line(indent, block))
        return "".join(lines).encode()

    def remove(self, report: bytes) -> bytes:
        """The file without the lines of `embed`."""
        lines = decoded(report).splitlines(keepends=True)
        return "".join(line for line in lines if not line.lstrip().startswith(f"{NOTES}: '{MARK}")).encode()


def _line(indent: int, block: Mapping[str, Any]) -> str:
    text = json.dumps(block).replace("'", "''")
    return f"{' ' * indent}{NOTES}: '{MARK}{text}'\n"


def _entries(report: bytes) -> list[Mapping[str, Any]]:
    try:
        document = parse_yaml("it", report).data
    except UserError as error:
        raise ValueError(str(error)) from error
    listed = document if isinstance(document, list) else []
    if not listed or not all(isinstance(entry, Mapping) and {"dataset", "value"} <= entry.keys() for entry in listed):
        raise ValueError("it is no list of results")
    return listed


def _ends(report: bytes) -> Iterator[tuple[int, int]]:
    """Behind which line each entry ends, and the column of its keys."""
    root = YAML(typ="safe", pure=True).compose(decoded(report))
    assert isinstance(root, SequenceNode)  # `_entries` parsed it
    for entry in root.value:
        if not isinstance(entry, MappingNode) or entry.flow_style:
            raise ValueError("an entry is not in block style")
        yield _last_line(entry.value[-1][1]) + 1, entry.start_mark.column


def _last_line(node: Any) -> int:
    if isinstance(node, MappingNode) and not node.flow_style:
        return _last_line(node.value[-1][1])
    if isinstance(node, SequenceNode) and not node.flow_style:
        return _last_line(node.value[-1])
    if getattr(node, "style", None) in ("|", ">"):
        raise ValueError("an entry ends with a text of several lines")
    return int(node.end_mark.line)


FORMAT = EvalResults("eval_results", lambda name, report: name.endswith((".yaml", ".yml")) and bool(_entries(report)))
