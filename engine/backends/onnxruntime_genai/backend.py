"""onnxruntime-genai as a backend: one arm, whose requests run one after another, and the models that it loads.

The engine names no refused draft, so every token is a step of its own without a draft; the rounds are facts of the
request. Rows are those that the engine showed before each token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.onnxruntime_genai import settings as own
from engine.backends.onnxruntime_genai.convert import CONVERTER, compose
from engine.backends.onnxruntime_genai.reconcile import SOURCES, Accounts, mismatches, speculation
from engine.backends.process.arm import (
    ConvertedEngine,
    ReadAnswer,
    changed_options,
    decoded_facts,
    end_of,
    single_steps,
)
from engine.backends.process.backend import ConvertedBackend, EngineKind, EngineWanted
from engine.backends.process.convert import Converted
from engine.backends.process.settings import ProcessSettings
from engine.core.child import Frame
from engine.core.types import RecordLevel, Request
from engine.record.effective import Effective
from engine.record.foreign.requests import ForeignRecord


@dataclass(frozen=True, slots=True)
class OrtEngine(ConvertedEngine):
    """One arm on onnxruntime-genai."""

    backend = "onnxruntime_genai"
    refused, levels = own.REFUSED, own.LEVELS

    @property
    def level(self) -> RecordLevel:
        """Rows, or tokens alone beside n-gram drafts."""
        return own.record_level(self.plan.proposer, self.plan.level)

    def effective_config(self) -> Effective:
        """The effective configuration, with the facts of the running engine."""
        settings = self.settings
        return self.stated(
            {"speculation": settings.kind is not None, **settings.speculative},
            self._in_effect(),
            gamma=settings.gamma if own.bounded(settings) else None,
        )

    def _in_effect(self) -> dict[str, Any]:
        """As the engine keeps them; its numbers are floats."""
        kept = self.processes.options(self.settings.speculative)
        drafts = self.models.draft is not None or kept["ngram_size"] > 0
        read = {name: type(value)(kept[name]) for name, value in self.settings.speculative.items() if name in kept}
        return {"speculation": drafts, **read}

    def message(self, request: Request) -> dict[str, Any]:
        """A request as the driver reads it."""
        return {
            "id": request.id,
            "prompt": list(request.prompt),
            "search": own.search_options(request, self.target.vocabulary),
            "speculative": dict(self.settings.speculative),
            "ends": list(request.sampling.stop_token_ids),
            "rows": self.level is not RecordLevel.TOKENS,
        }

    def read(self, request: Request, frame: Frame, message: Mapping[str, Any]) -> ReadAnswer:
        """Read an answer to a message."""
        answer, ends = frame.header, self.target.eos_ids
        tokens = tuple(int(token) for token in answer["tokens"])
        reason = end_of(request, tokens, ends)
        most = most_drafts(self.settings)
        accounts = Accounts(request.prompt, tokens, answer["sequence"], answer["growth"], most, ends)
        changed = [*changed_options(message["search"], answer["search"])]
        changed += changed_options(message["speculative"], answer["speculative"])
        facts: dict[str, Any] = {
            "reconciliation": {"sources": [*SOURCES, "options"], "mismatches": [*mismatches(accounts), *changed]},
            **decoded_facts(request, tokens, reason, self.target),
        }
        if self.settings.kind is not None:
            facts["speculation"] = speculation(accounts)
        record = ForeignRecord(single_steps(tokens, frame.arrays.get("rows")))
        return ReadAnswer(tokens, reason, self.target.tokens.decode(tokens), facts, record)


class OrtBackend(ConvertedBackend):
    """Arms over the same models share an engine."""

    kind, converter = EngineKind(own.PROGRAM, own.settings_of, OrtEngine), CONVERTER

    def job(self, wanted: EngineWanted[Converted]) -> dict[str, Any]:
        """The first message to the driver: the folder over the models, composed once."""
        target, draft, threads = wanted.models.target, wanted.models.draft, wanted.settings.threads
        home = self.home.path / f"composed-{target.sha256[:16]}-{draft.sha256[:16] if draft else 'alone'}-{threads}"
        if not home.exists():
            home.mkdir()
            compose(home, target.folder, draft.folder if draft else None, self.target.eos_ids, threads)
        return {"folder": str(home)}


def most_drafts(settings: ProcessSettings) -> int:
    """The largest number of drafted tokens of a round."""
    if settings.kind is None:
        return 0
    return settings.gamma if own.bounded(settings) else own.MOST_DRAFTS
