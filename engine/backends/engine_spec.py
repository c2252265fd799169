"""The specification of an arm for a backend, and the workshop that builds the arm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.backends.interface import Engine
from engine.core import types
from engine.stream.interface import StreamSpec


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The source and the loading options of a model (see `engine.models.loading`).

    loader: `lean` (own forward) or `hf` (unmodified transformers model).
    numerics: a mode of `engine.models.numerics.REGISTRY` or `auto`; None is `auto` for the target and `drafting` for
    the others, whose bits can change the number of accepted drafts but never the tokens of a greedy or coupled arm.
    """

    source: str
    dtype: str = "float32"
    loader: str = "lean"
    revision: str | None = None
    base: Path | None = None
    numerics: str | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One arm. `proposer` None is plain decoding; `draft` and `others` name models of the suite, for proposers that
    draft with several.
    """

    protocol: types.Protocol
    proposer: str | None = None
    gamma: int = 0
    draft: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 8
    level: types.RecordLevel = types.RecordLevel.FULL
    fault: str | None = None
    others: tuple[str, ...] = ()
    verifier_options: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own settings, for backends that have any."""
    beside: types.SamplingParams | None = None
    """Each request runs next to a neighbour: another request with the same prompt and these parameters
    (`engine.backends.neighbour`).
    """
    cancel_beside: int = 0
    """Tokens after which this neighbour is cancelled; 0 for one that is answered."""
    mixed: bool = False
    """Neighbours with contrasting parameters run among the requests (`engine.backends.neighbour.Mixed`)."""

    stream: StreamSpec | None = None
    """The text is recorded as it leaves, through these filters; None records the whole text only."""

    library: str | None = None
    """The grammar library of the arm's requests, for backends that choose it once per engine; None without grammars."""

    @property
    def drafts(self) -> tuple[str, ...]:
        """All models that draft, in the arm's order."""
        return (self.draft, *self.others) if self.draft else self.others


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The identity of one loaded model: digests of its weights and of its tokenizer."""

    name: str
    source: str
    revision: str | None
    sha256: str
    tokenizer_sha256: str | None
    manifest: Mapping[str, Any]


class Backend(Protocol):
    """A suite's models in memory."""

    def models(self) -> tuple[ModelFacts, ...]:
        """The models by name."""

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm. Raises InvalidRequest: a combination that this backend cannot run."""
