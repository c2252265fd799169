"""The models of a suite for an engine that needs them converted: found and digested here, each converted once.

A model for which the arm's settings name no converted folder is converted into a temporary one, in the engine's
Python, at the first arm that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.backends.converted.conversion import Converted, ModelConverter, convert, read_converted
from engine.backends.converted.folder import WorkFolder
from engine.backends.engine_process import interpreter
from engine.backends.engine_spec import ModelFacts, ModelSource
from engine.backends.local_target import LocalTarget, facts_of
from engine.core.errors import InvalidRequest, ModelError
from engine.models.loading import OpenedSource, open_source


@dataclass(frozen=True, slots=True)
class ArmModels:
    """The converted models of one arm, and the folder that holds temporary ones."""

    target: Converted
    draft: Converted | None
    home: WorkFolder

    @property
    def key(self) -> str:
        """Arms of equal keys run the same weights."""
        return "-".join((self.target.sha256, self.draft.sha256 if self.draft else ""))


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of converted models by the suite's names, and the interpreter that converts the others."""

    python: str
    converted: Mapping[str, str] = field(default_factory=dict)


class ConvertedModels:
    """The models of one suite.

    Raises:
        ModelError: a model that cannot be found, or that the engine cannot run.
    """

    def __init__(self, models: Mapping[str, ModelSource], converter: ModelConverter) -> None:
        self.target = LocalTarget(models["target"])
        self._converter = converter
        self._opened: dict[str, OpenedSource] = {
            name: open_source(source.source, source.revision, source.base) for name, source in models.items()
        }
        for opened in self._opened.values():
            converter.require(opened)
        self.home = WorkFolder(converter.kind)
        self._converted: dict[str, Converted] = {}

    def facts(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return tuple(facts_of(name, opened) for name, opened in self._opened.items())

    def of_arm(self, draft: str | None, folders: Folders) -> ArmModels:
        """The models of one arm; `draft` is the suite's name.

        Raises:
            InvalidRequest: there is no such model.
            ModelError: a model that cannot be converted, a folder of another model, or a draft of another size.
        """
        if draft is not None and draft not in self._opened:
            raise InvalidRequest(f"no model named {draft!r}; there are: {', '.join(self._opened)}")
        target = self._model("target", folders)
        if draft is None:
            return ArmModels(target, None, self.home)
        drafting = self._model(draft, folders)
        self._require_alike(draft)
        return ArmModels(target, drafting, self.home)

    def _model(self, name: str, folders: Folders) -> Converted:
        opened = self._opened[name]
        if name in folders.converted:
            folder = Path(folders.converted[name]).expanduser()
            converted = read_converted(folder)
            if converted.source_sha256 != opened.facts["model_sha256"]:
                raise ModelError(f"{folder}: converted from another model than {opened.source}; convert that one")
            if converted.manifest.get("to") != self._converter.kind:
                raise ModelError(
                    f"{folder}: converted to another format; use audit convert --to {self._converter.kind}"
                )
            return converted
        if name not in self._converted:
            python = interpreter(folders.python, self._converter.program.name)
            self._converted[name] = convert(self._converter, opened, python, self.home.path / name)
        return self._converted[name]

    def _require_alike(self, name: str) -> None:
        draft, target = self._opened[name], self._opened["target"]
        ours, theirs = (opened.folder.config.get("vocab_size") for opened in (draft, target))
        if ours != theirs:
            raise ModelError(f"{draft.source}: {ours} logits, but the target has {theirs}; use a draft of that size")
