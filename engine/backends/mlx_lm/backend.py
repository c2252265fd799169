"""mlx_lm as a backend: one arm, whose requests run one after another. It reads the models' folders as they are.

The steps are the engine's rounds. If the accounts contradict each other, the record holds the tokens one by one, with
their rows and without drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.local_target import LocalTarget
from engine.backends.mlx_lm.rounds import SOURCES, contradictions, keeps_draws, rounds_of, speculation
from engine.backends.mlx_lm.settings import LEVELS, PROGRAM, REFUSED, arguments_of, message_of, settings_of
from engine.backends.process.arm import ProcessEngine, ReadAnswer, end_of, single_steps
from engine.backends.process.backend import EngineKind, EngineWanted, ProcessBackend
from engine.backends.process.settings import ProcessSettings
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.child import Frame
from engine.core.types import FinishReason, QKind, RecordLevel, Request
from engine.models.loading import OpenedSource
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignRecord
from engine.record.foreign.steps import ForeignStep


@dataclass(frozen=True, slots=True)
class MlxEngine(ProcessEngine[OpenedSource]):
    """One arm on mlx_lm."""

    backend = "mlx_lm"
    refused, levels = REFUSED, LEVELS

    @property
    def level(self) -> RecordLevel:
        """That of the plan."""
        return self.plan.level

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

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> ReadAnswer:
        """Read an answer."""
        answer, rows, gamma = frame.header, frame.arrays.get("rows"), self.settings.gamma
        version, greedy = self.processes.facts()["installed"]["version"], request.sampling.temperature == 0
        # true if every token that the engine returns has to be the one that its target drew there
        keeps = keeps_draws(version, greedy=greedy, gamma=gamma)
        tokens = tuple(int(token) for token in answer["tokens"])
        reason = end_of(request, tokens, self.target.eos_ids)
        mistakes = contradictions(answer, message, gamma)
        facts: dict[str, Any] = {
            "reconciliation": {
                "sources": list(SOURCES),
                "mismatches": [mistake.message for mistake in mistakes],
                "faults": [mistake.message for mistake in mistakes if mistake.misreturned and keeps],
            },
            **_decoded(request, tokens, reason, self.target),
        }
        if gamma:
            facts["speculation"] = speculation(answer)
        steps = _rounds(answer, rows) if gamma and not mistakes else single_steps(answer["tokens"], rows)
        return ReadAnswer(tokens, reason, answer["text"], facts, ForeignRecord(steps))


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


def _decoded(request: Request, tokens: tuple[int, ...], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The tokens decoded a second time: the engine's text has special tokens, but no token that ended the answer."""
    kept = tokens if reason is FinishReason.LENGTH else tokens[:-1]
    decoding = target.decoded(request.prompt, kept, special=True)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()


def _rounds(answer: Mapping[str, Any], rows: Any) -> tuple[ForeignStep, ...]:
    steps, start = [], 0
    for other in rounds_of(answer):
        end = start + len(other.emitted)
        steps.append(
            ForeignStep(
                drafted=other.drafted,
                emitted=other.emitted,
                accepted=other.accepted,
                q_kind=QKind.ONE_HOT,
                logits=None if rows is None else rows[start:end],
                examined_q=(1.0,) * len(other.drafted),
            )
        )
        start = end
    return tuple(steps)
