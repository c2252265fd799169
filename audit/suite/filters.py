"""Parses an arm's safety filters and reads their rule files. Loads no filter but `patterns`, which needs no package."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from audit.text.documents import Document, Place, packaged_file, read_yaml
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted
from engine.backends.catalogue import BackendKind, SourceKind
from engine.core.errors import InvalidRequest
from engine.core.registry import FILTERS
from engine.stream.interface import FilterSpec, StreamSpec, filter_spec
from engine.stream.loading import load_filter

PACKAGED: Final = "suites:"
MODEL: Final = "model"
"""The option that names a folder, or a bundled model."""
BUNDLED: Final = SourceKind.BUNDLED.value


class FiltersParser:
    """Converts the keys `filters` and `stream` of a schema-valid document to values."""

    def __init__(self, document: Document, folder: Path, kind: BackendKind) -> None:
        self._document = document
        self._folder = folder
        self._kind = kind
        self.digests: dict[str, bytes] = {}
        """SHA-256 of every rule file that was read, by its path."""

    def stream(self, arm: Place, entry: Mapping[str, Any]) -> StreamSpec | None:
        """The stream of an arm: its own keys, else the suite's; None if its text is recorded as a whole only."""
        own = "filters" in entry
        listed = entry["filters"] if own else self._document.data.get("filters", [])
        place: Place = (*arm, "filters") if own else ("filters",)
        wanted = entry.get("stream", self._document.data.get("stream", bool(listed)))
        if (listed or wanted) and not self._kind.ours:
            where = place if listed else (*arm, "stream")
            raise self._document.error(where, "only the built-in engine has streams and filters; remove this")
        if listed and not wanted:
            raise self._document.error((*arm, "stream"), "filters read the stream; write stream: true, or filters: []")
        if not wanted:
            return None
        return StreamSpec(tuple(self._filter((*place, index), item) for index, item in enumerate(listed)))

    def _filter(self, place: Place, entry: Mapping[str, Any]) -> FilterSpec:
        kind = entry["kind"]
        if kind not in FILTERS:
            raise self._document.error(
                (*place, "kind"), f"unknown filter {quoted(kind)}; {suggestion(kind, list(FILTERS))}"
            )
        rules = {**self._rules((*place, "rules"), entry.get("rules")), **entry.get("options", {})}
        if isinstance(rules.get(MODEL), str) and not rules[MODEL].startswith(BUNDLED):
            rules[MODEL] = str(self._folder / Path(rules[MODEL]).expanduser())
        try:
            spec = filter_spec(kind, entry["action"], entry.get("side", "output"), rules)
            if kind == "patterns":
                load_filter(spec)
        except InvalidRequest as error:
            raise self._document.error(place, f"{error}; change the filter") from error
        return spec

    def _rules(self, place: Place, name: str | None) -> Mapping[str, Any]:
        """The rule file's content: a mapping in YAML or JSON."""
        if name is None:
            return {}
        path: Path | None = self._folder / name
        if name.startswith(PACKAGED):
            path = packaged_file(name.removeprefix(PACKAGED))
        if path is None or not path.is_file():
            problem = f"no rule file {quoted(str(path or name))}; write a path from here, or suites:PATH"
            raise self._document.error(place, problem)
        document = read_yaml(path)
        if not isinstance(document.data, Mapping):
            raise document.error((), "rules are a mapping; see docs/filters.md")
        self.digests[str(path)] = hashlib.sha256(document.raw).digest()
        return document.data
