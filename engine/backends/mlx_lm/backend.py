"""mlx_lm as a backend: one arm, whose requests run one after another. It reads the models' folders as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.mlx_lm.rounds import keeps_draws
from engine.backends.mlx_lm.settings import LEVELS, PROGRAM, REFUSED, arguments_of, message_of, settings_of
from engine.backends.mlx_lm.to_record import read
from engine.backends.process.arm import ProcessEngine
from engine.backends.process.backend import EngineKind, EngineWanted, ProcessBackend
from engine.backends.process.record import AnswerTerms, ReadAnswer
from engine.backends.process.settings import ProcessSettings
from engine.core.child import Frame
from engine.core.types import RecordLevel, Request
from engine.models.loading import OpenedSource
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class MlxEngine(ProcessEngine[OpenedSource]):
    """One arm on mlx_lm."""

    backend = "mlx_lm"
    refused = REFUSED

    @property
    def level(self) -> RecordLevel:
        """That of the plan."""
        return self.plan.level

    @property
    def evidence_level(self) -> int:
        """Rows, drafts and the decision on each."""
        return LEVELS[self.level].level

    def identity(self) -> dict[str, Any]:
        """The draft."""
        return {"draft": None if self.models.draft is None else dict(self.models.draft.facts)}

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        asked = arguments_of(self.settings)
        kept = self.processes.options(asked)
        requested = {"speculation": self.settings.kind or "none", **asked}
        effective = {"speculation": kept["way"], **{name: kept[name] for name in asked}}
        return self.configured({"requested": requested, "effective": effective})

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "sampling": message_of(request, self.target.vocabulary, self.target.eos_ids),
            "arguments": arguments_of(self.settings),
            "rows": self.level is not RecordLevel.TOKENS,
        }

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
        """Read an answer."""
        version, greedy = self.processes.facts()["installed"]["version"], request.sampling.temperature == 0
        keeps = keeps_draws(version, greedy=greedy, gamma=self.settings.gamma)
        return read(request, frame, message, terms, keeps_draws=keeps)


class MlxBackend(ProcessBackend[OpenedSource]):
    """Arms over the same models share an engine."""

    kind = EngineKind(PROGRAM, settings_of, MlxEngine, {"HF_HUB_OFFLINE": "1"})

    def model(self, name: str, settings: ProcessSettings) -> OpenedSource:
        """The folder."""
        del settings
        return self.opened[name]

    def job(self, wanted: EngineWanted[OpenedSource]) -> dict[str, Any]:
        """The first message to the driver."""
        draft = None if wanted.models.draft is None else _folder(wanted.models.draft)
        return {"target": _folder(wanted.models.target), "draft": draft}


def _folder(opened: OpenedSource) -> dict[str, Any]:
    """A model's folder, and the digests by which the engine's process knows its weights again."""
    files = {file.name: file.sha256 for file in opened.folder.files}
    return {"folder": str(opened.folder.path.resolve()), "files": files}
