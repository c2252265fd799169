"""The settings that engines in a process of their own share, validated before anything runs, and their evidence.

Options of a proposer keep the engine's names. Imports neither torch nor any engine.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import schemas
from engine.backends.access import OutsideAccess, OutsideKind
from engine.backends.catalogue import BackendKind, opener
from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import Declaration, Part, Shown, levels
from engine.core.errors import InvalidRequest
from engine.core.options import OptionType, read_options
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams

Refusals: TypeAlias = "Mapping[str, Callable[[SamplingParams], bool]]"
"""Parameters that an engine lacks: the message with the fix, and the test of a request's."""


@dataclass(frozen=True, slots=True)
class EngineWords:
    """One engine: its own name, the backend's, the setting that names converted folders, and its proposers' options.

    width: the engine's name of gamma. most: its largest value.
    """

    name: str
    backend: str
    folders: str
    kinds: Mapping[str, Mapping[str, OptionType]]
    width: str
    most: int

    @property
    def schema(self) -> str:
        """The schema of the settings."""
        return f"engine-{self.backend}"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """One arm.

    speculative: the options in the engine's words; empty without speculation.
    folders: of converted models by the suite's names; other models are converted when the engine starts.
    threads: of the engine; None is its own choice. given: every setting as the suite gives it.
    """

    python: str
    kind: str | None = None
    gamma: int = 0
    draft: str | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    silence_s: float = 600
    start_s: float = 900
    restarts: int = 4
    given: Mapping[str, Any] = field(default_factory=dict)


def require_known(engine: str, schema: str, given: Mapping[str, Any]) -> None:
    """Refuse settings that the schema lacks. Raises InvalidRequest."""
    known = schemas.load(schema)["properties"]
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"engine.{name}: there is no such setting of {engine} here; there are: {', '.join(known)}"
            )


def process_settings(plan: EngineSpec, words: EngineWords) -> ProcessSettings:
    """The arm's settings. Raises InvalidRequest: a setting that the engine lacks; the message states the fix."""
    given = dict(plan.engine)
    require_known(words.name, words.schema, given)
    if plan.fault is not None:
        raise InvalidRequest(f"fault {plan.fault}: faults are of the native backend; remove it")
    return ProcessSettings(
        python=given.get("python", sys.executable),
        kind=plan.proposer,
        gamma=plan.gamma if plan.proposer is not None else 0,
        draft=plan.draft,
        speculative=_speculative(plan, words),
        folders=dict(given.get(words.folders, {})),
        threads=given.get("threads"),
        silence_s=given.get("timeout_s", 600),
        start_s=given.get("start_timeout_s", 900),
        restarts=given.get("restarts", 4),
        given=given,
    )


def _speculative(plan: EngineSpec, words: EngineWords) -> dict[str, Any]:
    if plan.proposer is None:
        return {}
    if plan.proposer not in words.kinds:
        raise InvalidRequest(f"{words.name} has no proposer {plan.proposer!r}; it has: {', '.join(words.kinds)}")
    name = f"proposer {plan.proposer}"
    if not 1 <= plan.gamma <= words.most:
        raise InvalidRequest(f"{name}: gamma must be 1 to {words.most}, not {plan.gamma}")
    if (plan.draft is None) == (plan.proposer == "draft_model"):
        fix = "drafts with a model; add model: NAME to the proposer"
        raise InvalidRequest(f"{name} {fix if plan.draft is None else 'drafts without a model; remove model'}")
    if plan.others:
        raise InvalidRequest(f"{name} drafts with one model; remove others from the proposer")
    return {words.width: plan.gamma, **read_options(name, plan.options, words.kinds[plan.proposer])}


def backend_kind(words: EngineWords, evidence: Declaration, rules: tuple[str, ...], backend: str) -> BackendKind:
    """The facts of an engine's backend.

    Args:
        words: of the engine.
        evidence: in its records.
        rules: that an arm may request.
        backend: its class, as `module:Class`.
    """

    def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
        """The interpreter and the converted folders that an arm's engine settings name."""
        named = engine.get(words.folders, {}).items()
        key = f"engine.{words.folders}"
        accesses = [OutsideAccess(OutsideKind.FILE, str(folder), f"{key}.{name}") for name, folder in named]
        if "python" in engine:
            accesses.append(OutsideAccess(OutsideKind.PROGRAM, str(engine["python"]), "engine.python"))
        return tuple(accesses)

    return BackendKind(
        open=opener(backend),
        evidence=evidence,
        proposers=tuple(words.kinds),
        rules=rules,
        options=words.schema,
        outside=outside,
    )


def refusal(refused: Refusals, sampling: SamplingParams) -> str | None:
    """The reason why a request cannot be served, or None."""
    return next((message for message, holds in refused.items() if holds(sampling)), None)


DECODED: Final = frozenset((Part.TEXT, Part.DECODED, Part.TOKENS, Part.REFERENCE, Part.ACCOUNTS))
"""The parts of every record: a local target gives the second decoding and the reference pass."""
SCORED: Final[Mapping[RecordLevel, Shown]] = levels({RecordLevel.TOKENS: (1, DECODED | {Part.LOGPROBS})})
"""The evidence of an engine that reports log-probabilities and no rows."""


def matching_rule(asked: Protocol) -> Protocol:
    """The rule that verifies where drafts are matched with draws from p, which is the chain rule for one-hot q."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else Protocol.CHAIN


def seed_of(request: Request, size: int = 4) -> int:
    """A request's own seed, of one bit less than `size` bytes: another for every pair of seed and stream."""
    text = f"{request.sampling.seed} {request.stream}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") >> 1
