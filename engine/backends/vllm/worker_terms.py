"""Terms by which vLLM's worker reduces the rows of a call's requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.backends.vllm.decisions import StepReading
from engine.core.types import Protocol, RecordLevel, Request
from engine.record.requests import sampling_from_json
from engine.record.rows.row_laws import RowHeader


@dataclass(frozen=True, slots=True)
class WorkerTerms(RowHeader):
    """One request, and the meaning of its steps."""

    reading: StepReading


@dataclass(frozen=True, slots=True)
class CallTerms:
    """The parts of the target's rows that a call keeps, at the record's level, and its common terms.

    drawn, masks: as in `engine.backends.vllm.decisions.StepReading`.
    """

    level: RecordLevel
    protocol: Protocol = Protocol.CHAIN
    vocabulary: int = 0
    eos_ids: tuple[int, ...] = ()
    drawn: bool = False
    masks: bool = True

    def message(self, requests: Mapping[str, Request]) -> dict[str, Any]:
        """The part of a message that says so; `requests` by the names of their answers."""
        reduced = self.level not in (RecordLevel.TOKENS, RecordLevel.FULL)
        terms = {"terms": self._terms(requests)} if reduced else {}
        return {"rows": self.level is not RecordLevel.TOKENS, **terms}

    def _terms(self, requests: Mapping[str, Request]) -> dict[str, Any]:
        """As JSON values; `terms_of` reads them."""
        return {
            "level": self.level.value,
            "protocol": self.protocol.value,
            "vocabulary": self.vocabulary,
            "eos_ids": list(self.eos_ids),
            "drawn": self.drawn,
            "masks": self.masks,
            "requests": {name: _own(request) for name, request in requests.items()},
        }


def _own(request: Request) -> dict[str, Any]:
    return {"prompt": list(request.prompt), "sampling": request.sampling.document(), "stream": str(request.stream)}


def terms_of(document: Mapping[str, Any]) -> dict[str, WorkerTerms]:
    """By the names of answers, from what `CallTerms.message` has under `terms`."""
    return {name: _terms(document, own) for name, own in document["requests"].items()}


def _terms(document: Mapping[str, Any], own: Mapping[str, Any]) -> WorkerTerms:
    sampling, vocabulary = sampling_from_json(own["sampling"]), document["vocabulary"]
    structured = sampling.structured is not None
    return WorkerTerms(
        level=RecordLevel(document["level"]),
        protocol=Protocol(document["protocol"]),
        vocabulary=vocabulary,
        sampling=sampling,
        prompt=tuple(own["prompt"]),
        eos_ids=tuple(document["eos_ids"]),
        stream=int(own["stream"]),
        reading=StepReading(vocabulary, sampling.greedy, structured, document["drawn"], document["masks"]),
    )
