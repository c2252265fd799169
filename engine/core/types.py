"""Frozen values that travel through the engine.

The convention, stated once: **p is the target, q is the draft, both after all sampling transforms** (penalties, masks,
temperature, top-k, top-p, min-p). A *position* is absolute: index into prompt + generated tokens. A *step* is one
propose-verify-commit cycle, that is one target forward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintSpec
from engine.core.versions import DraftVersion

if TYPE_CHECKING:
    # commands that compute nothing import this module too
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Mask: TypeAlias = "NDArray[np.bool_]"
"""[V] the tokens that a grammar allows."""


class QKind(IntEnum):
    """The way in which a proposal's drafted tokens were chosen."""

    NONE = 0
    """No q is known; only rules that need none may verify it."""
    ONE_HOT = 1
    """Each token is a deterministic function of its prefix."""
    FULL = 2
    """Each token was drawn from a q row that is kept."""


class Role(IntEnum):
    """The reason why a token was emitted (vLLM's terms)."""

    ACCEPTED = 0
    """A drafted token that was kept."""
    RECOVERED = 1
    """Drawn from the residual at the first rejection."""
    BONUS = 2
    """Drawn from p after every drafted token was accepted."""
    PLAIN = 3
    """Drawn from p in a step without any drafted token."""


class Protocol(StrEnum):
    """The verification rule, a recorded field; each component test applies to one rule only."""

    GREEDY = "greedy"
    CHAIN = "chain"
    TREE = "tree"
    BLOCK = "block"
    GUMBEL = "gumbel"
    TYPICAL = "typical"
    THRESHOLD = "threshold"
    ENSEMBLE = "ensemble"
    SYNTHETIC = "synthetic"


class DraftRule(StrEnum):
    """The draw rule that a verifier requires of a proposer."""

    GREEDY = "greedy"
    INDEPENDENT = "independent"
    COUPLED = "coupled"


class FinishReason(StrEnum):
    """The reason why a generation ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    FILTER = "filter"
    """A safety filter ended the response, or refused the prompt; the record's fact `stream` states the decision."""
    ERROR = "error"
    """The engine gave no answer: there are no tokens, and the record's facts state the reason."""


class RecordLevel(StrEnum):
    """The amount of data in a trace; every level contains the ones before it."""

    TOKENS = "tokens"
    """Drafted and emitted tokens, counts and roles."""
    SCALARS = "scalars"
    """p, q, random numbers, margins of every decision."""
    TOPK = "topk"
    """The largest entries of the logits rows behind every decision."""
    FULL = "full"
    """The whole logits rows: every decision can be recomputed."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters that turn logits into p, off by default; `temperature=0` is greedy.

    Raises:
        InvalidRequest: a value outside its range, named.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    structured: ConstraintSpec | None = None
    """The grammar of the answer: a mask on every row."""

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.temperature < math.inf, "temperature must be 0 or more, and finite"),
            (self.top_k >= 0, "top_k must be 0 (off) or more"),
            (0 < self.top_p <= 1, "top_p must be in (0, 1]"),
            (0 <= self.min_p < 1, "min_p must be in [0, 1)"),
            (0 < self.repetition_penalty < math.inf, "repetition_penalty must be above 0, and finite"),
            (math.isfinite(self.presence_penalty), "presence_penalty must be finite"),
            (math.isfinite(self.frequency_penalty), "frequency_penalty must be finite"),
            (self.min_tokens >= 0, "min_tokens must be 0 or more"),
            (self.max_new_tokens >= 1, "max_new_tokens must be 1 or more"),
            (0 <= self.seed < 2**63, "seed must be in [0, 2^63)"),
            (all(self.bad_words), "bad_words must not contain an empty sequence"),
            (all(self.stop), "stop must not contain an empty string"),
            (not (self.structured and self.min_tokens), "min_tokens must be 0 with structured: the grammar ends"),
            (not (self.structured and self.ignore_eos), "ignore_eos must be false with structured: the grammar ends"),
        )
        for holds, message in rules:
            if not holds:
                raise InvalidRequest(message)

    @property
    def greedy(self) -> bool:
        """Temperature 0: the argmax of the transformed logits, lowest id on exact ties."""
        return self.temperature == 0.0

    @property
    def plain_scores(self) -> bool:
        """No bias, mask or penalty is on: the scores are the logits."""
        masks = self.logit_bias or self.bad_words or self.min_tokens or self.structured
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        return not (masks or penalties)

    def document(self) -> dict[str, Any]:
        """The parameters as JSON values. `structured` is left out if it is off, so that digests keep their values."""
        written = asdict(self)
        if self.structured is None:
            del written["structured"]
        return written


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that a request offers, as JSON objects in OpenAI's form or as the function alone.

    `choice` is `auto`, `none`, `required`, or a mapping with the `name` of the one to call.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: str | Mapping[str, str] = "auto"

    @property
    def demands(self) -> bool:
        """True if the answer must call a tool."""
        return self.choice not in ("auto", "none")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    `stream` keys the random numbers: the same (seed, stream) draws the same numbers at the same positions in every
    batch.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stream: int = 0
    tools: ToolOffer | None = None
    """The tools that the prompt offers; None if it offers none, so that nothing looks for calls in the answer."""
    leaves_after: int = 0
    """Tokens after which its client no longer waits, so that it is withdrawn; 0 for a client that waits to the end."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidRequest(f"request {self.id}: the prompt has no tokens")


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted tokens as a parent array; -1 is the root (the last committed token).

    Parents come before their children. A chain is a tree with one child per node.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @classmethod
    def chain(cls, tokens: tuple[int, ...]) -> Tree:
        """The chain of `tokens`."""
        return cls(tokens, tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposer's offer for one request in one step. It holds every drawn token, including those that are dropped
    later.
    """

    tree: Tree = Tree()
    q_kind: QKind = QKind.NONE
    q: Floats | None = None
    """[N, V] the distribution that each token was drawn from, given its earlier siblings (`QKind.FULL`)."""
    uniforms: Floats | None = None
    """[N] the draft's own random numbers, NaN where none drew the token."""
    lookahead_tokens: Tree = Tree()
    """Tokens that the target reads in the same forward and that cannot be accepted; -1 is the root here too."""
    version: DraftVersion | None = None
    """The version that drafted, for a draft that learns while serving."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """One emitted token and the values that decided it."""

    token: int
    role: Role
    row: int
    """Index of the p row that decided it: 0 is the root's, i + 1 node i's."""
    p: float
    uniform: float = float("nan")
    """The number that drew a recovered, bonus or plain token; NaN if none did."""


@dataclass(frozen=True, slots=True)
class Examined:
    """One drafted token on which the verifier decided."""

    node: int
    p: float
    q: float
    uniform: float
    """The acceptance number; NaN for rules that compare tokens."""
    accepted: bool


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The verifier's decision on one proposal."""

    emitted: tuple[Emitted, ...]
    examined: tuple[Examined, ...] = ()
    residual_mass: float = float("nan")
    """Mass of max(p - q, 0) at the rejection, before it is normalised (rejection rules only)."""
    joint: bool = False
    """The rule decides on the whole draft at once: it needs every row and is kept whole when the emitted tokens are
    cut.
    """

    @property
    def n_accepted(self) -> int:
        """Number of drafted tokens kept."""
        return sum(1 for item in self.emitted if item.role is Role.ACCEPTED)


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall time of the parts of one step, in microseconds, shared by the batch."""

    draft_us: int = 0
    verify_us: int = 0
    batch: int = 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything that one step decided for one request, after stops were applied.

    `logits` [E, V] are the target's rows that decided the E emitted tokens, as the model gave them, in its dtype;
    `scores` the same rows after bias, masks and penalties, before temperature and truncation, None where these change
    nothing. `spare` [R, V] are the rows of a joint decision that decided no emitted token, None without any. The holder
    of the record owns the arrays; nothing else writes to them.
    """

    step: int
    position: int
    proposal: Proposal
    verdict: StepOutcome
    logits: NDArray[np.floating[Any]]
    scores: Floats | None
    timing: Timing = Timing()
    spare: NDArray[np.floating[Any]] | None = None
    allowed: Mask | None = None
    """[E, V] the grammar's masks on the rows of `logits`; None without a grammar."""
    spare_allowed: Mask | None = None
    """[R, V] those on the rows of `spare`."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request.

    `trace` is the encoded record (see `engine.record.recorder`), empty without recording.
    """

    request: Request
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    trace: bytes
    text: str = ""
    latency_us: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
