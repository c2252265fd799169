"""A validated suite: arms, prompts and checks.

Values only; `audit.suite.loader` makes them from YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from audit.evidence.coverage.rule import DEFAULT_FLOORS, CoverageRule
from engine.backends.engine_spec import ModelSource
from engine.core.structured import ConstraintSpec
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.stream.interface import StreamSpec


@dataclass(frozen=True, slots=True)
class DirectedSampling:
    """The parameters of a directed request that differ from its arm's; None and empty ones do not."""

    max_new_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    """Beside the arm's."""
    stop: tuple[str, ...] = ()
    """Beside the arm's."""
    stream: int | None = None
    """The random stream of the request that it ends early; None for one of its own."""

    def applied(self, sampling: SamplingParams) -> SamplingParams:
        """The arm's parameters with these changes; the least length stays within the greatest."""
        most = self.max_new_tokens or sampling.max_new_tokens
        return replace(
            sampling,
            max_new_tokens=most,
            min_tokens=min(self.min_tokens or sampling.min_tokens, most),
            stop_token_ids=(*sampling.stop_token_ids, *self.stop_token_ids),
            stop=(*sampling.stop, *self.stop),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt. `id` is unique in the suite and keys the random stream."""

    id: str
    workload: str
    domain: str
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    prompt: str | None = None
    """Raw text, used instead of messages and the chat template."""
    tokens: tuple[int, ...] = ()
    """Token ids, used instead of any text."""
    tool_choice: str | Mapping[str, str] = "auto"
    """As in `engine.core.types.ToolOffer`; it says nothing without tools."""
    template: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the chat template."""
    samples: tuple[int, ...] | None = None
    """The sample numbers that run; None runs the suite's number of samples, from 0."""

    structured: ConstraintSpec | None = None
    """The case's own grammar, for the arms that take it (`audit.suite.structured.sampling_of`)."""
    direction: DirectedSampling | None = None
    """The changes that make a directed request; None for the suite's own cases."""
    turns: tuple[str, ...] = ()
    """The words of the user after each answer (`audit.suite.prompts.following`)."""

    def repetitions(self, count: int, earlier: int = 0) -> tuple[int, ...]:
        """The sample numbers after `earlier` repetitions of the suite; no two repetitions share one."""
        if self.samples is None:
            return tuple(range(earlier * count, (earlier + 1) * count))
        span = max(self.samples) + 1
        return tuple(earlier * span + sample for sample in self.samples)


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """A key of `engine.proposers.REGISTRY` and its options."""

    kind: str
    gamma: int
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Further draft models, for families that use several."""


@dataclass(frozen=True, slots=True)
class ArmChecks:
    """How an arm is judged: its checks with their parameters, and the floors of coverage."""

    checks: Mapping[str, Mapping[str, Any]]
    coverage: CoverageRule = DEFAULT_FLOORS


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """One candidate: a proposer under a verification rule at sampling parameters.

    `checks` maps a check's name to its parameters, merged with the suite's defaults.
    """

    name: str
    proposer: ProposerSpec
    verifier: Protocol
    sampling: SamplingParams
    record: RecordLevel
    checks: Mapping[str, Mapping[str, Any]]
    fault: str | None = None
    """A key of the backend's `faults`, which breaks the arm deliberately."""
    verifier_options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the rule from the suite; the others keep their defaults."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own settings; they override those of the suite."""
    beside: SamplingParams | None = None
    """Sampling parameters of a neighbour: another request with the same prompt in the same batch."""
    cancel_beside: int = 0
    """Tokens after which the neighbour is cancelled; 0 for one that is answered."""
    coverage: CoverageRule = DEFAULT_FLOORS
    """How often the arm's checks must examine each situation before they may certify it."""
    stream: StreamSpec | None = None
    """The text is recorded as it leaves, through these filters."""
    requested_record: str | None = None
    """The record level that the suite asks for, `auto` included; None if it is `record`."""

    @property
    def judged(self) -> ArmChecks:
        """How the arm is judged."""
        return ArmChecks(self.checks, self.coverage)


@dataclass(frozen=True, slots=True)
class Suite:
    """A whole suite. `sha256` is the digest of the YAML and of every prompt file it names."""

    name: str
    path: str
    description: str
    backend: str
    seed: int
    batch_size: int
    samples: int
    """Independent repetitions of each case in sampled arms."""
    models: Mapping[str, ModelSource]
    cases: tuple[Case, ...]
    arms: tuple[CandidateSpec, ...]
    sha256: str
    document: Mapping[str, Any]
    """The validated YAML as JSON, stored with the run."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own settings, for every arm."""
    mixed: bool = False
    """Candidates run among neighbours with contrasting sampling parameters."""
    withheld: bool = False
    """The caller wants no text in the store, whatever the document says."""

    @property
    def text(self) -> bool:
        """False: the store gets no prompts, outputs, tokens or findings (`audit.store.writing.contents`)."""
        return not self.withheld and self.document.get("text", "on") == "on"
