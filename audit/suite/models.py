"""Parses a suite's models and validates their sources for the backend. Loads no model."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from audit.text.documents import Document, Place
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted
from engine.backends.catalogue import BackendKind, SourceKind
from engine.backends.engine_spec import ModelSource
from engine.models import numerics
from engine.models.files.folder import is_gguf

BUNDLED: Final = "bundled:"
HUB: Final = "hf:"
SERVED: Final = "served:"
SEEDED: Final = re.compile(r"scripted:[0-9]{1,18}")


class ModelsParser:
    """Converts the models of a schema-valid document to values."""

    def __init__(self, document: Document, folder: Path, kind: BackendKind) -> None:
        self._document = document
        self._folder = folder
        self._kind = kind

    def spec(self, name: str, entry: str | Mapping[str, Any]) -> ModelSource:
        """Parse the model of that name and validate its source for the backend."""
        place: Place = ("models", name) if isinstance(entry, str) else ("models", name, "source")
        spec = {"source": entry} if isinstance(entry, str) else dict(entry)
        source = self._source(place, str(spec.pop("source")))
        if "revision" in spec and not source.startswith(HUB):
            raise self._document.error(("models", name, "revision"), "only an hf: source has a revision; remove it")
        self._numerics(name, source, spec)
        return ModelSource(source, **spec)

    def _numerics(self, name: str, source: str, spec: Mapping[str, Any]) -> None:
        """Validate a model's numerics for its part and its loader."""
        mode, place = spec.get("numerics"), ("models", name, "numerics")
        if mode is None:
            return
        if _source_kind(source) is SourceKind.SCRIPTED:
            raise self._document.error(place, "a scripted model computes nothing; remove numerics")
        if name == "target" and mode in numerics.ROUNDED:
            problem = f"{mode} rounds the weights, so it is for drafts only; write numerics: auto"
            raise self._document.error(place, problem)
        if spec.get("loader") == "hf" and mode not in numerics.FOREIGN:
            problem = f"loader hf has no numerics {mode}; write loader: lean, or numerics: fast"
            raise self._document.error(place, problem)

    def _source(self, place: Place, source: str) -> str:
        kind = _source_kind(source)
        if kind not in self._kind.sources or (kind is SourceKind.SCRIPTED and not SEEDED.fullmatch(source)):
            raise self._document.error(
                place, f"{quoted(source)} is no source for this backend; write {self._accepted()}"
            )
        if kind is SourceKind.BUNDLED:
            return self._bundled(place, source)
        if kind is SourceKind.HUB:
            parts = source.removeprefix(HUB).split("/")
            if len(parts) != 2 or not all(parts):
                raise self._document.error(place, f"{quoted(source)} is no model; write hf:ORG/NAME")
        return source if kind is not SourceKind.FOLDER else self._model_folder(place, source)

    def _accepted(self) -> str:
        if SourceKind.SCRIPTED in self._kind.sources:
            return "scripted:SEED"
        served = "served:NAME, " if SourceKind.SERVED in self._kind.sources else ""
        return f"{served}a folder, a .gguf file, bundled:NAME or hf:ORG/NAME, or set backend: scripted"

    def _model_folder(self, place: Place, source: str) -> str:
        folder = self._folder / Path(source).expanduser()
        if is_gguf(folder):
            return str(folder)
        if not folder.is_dir():
            problem = f"no model folder {quoted(str(folder))}; write a folder, .gguf file, bundled:NAME or hf:ORG/NAME"
            raise self._document.error(place, problem)
        if not (folder / "config.json").is_file():
            raise self._document.error(place, f"{quoted(str(folder))} has no config.json; name a model folder")
        return str(folder)

    def _bundled(self, place: Place, source: str) -> str:
        home = Path(str(files("engine"))) / "bundled"
        known = [f"{BUNDLED}{path.parent.name}" for path in home.glob("*/config.json")]
        if source not in known:
            problem = f"no bundled model {quoted(source)}; {suggestion(source, known)}"
            raise self._document.error(place, problem)
        return source


def _source_kind(source: str) -> SourceKind:
    """Find the kind by the prefix; a source without one is a folder."""
    return next((kind for kind in SourceKind if source.startswith(kind)), SourceKind.FOLDER)
