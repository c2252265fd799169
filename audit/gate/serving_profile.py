"""Serving profiles: what a deployment serves and how it runs, as a policy or a file of the deployment states it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import schemas
from audit.errors import UserError
from audit.text.documents import read_yaml
from audit.text.schema_errors import check_document, check_part
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from engine.core.types import SamplingParams

SERVABLE: Final = ("greedy", "sampled", "structured", "tools", "filters", "streaming", "logprobs", "adapters")
"""Kinds of served requests."""
MODEL_ROLES: Final = ("target", "draft", "tokenizer", "adapter")
CHOICES: Final = 20
FREE_FROM: Final = 0.5
"""Temperature from which requests show a deployment that samples at temperatures that nobody stated."""
LEAST_TOP_K: Final = 10
LEAST_TOP_P: Final = 0.5
MOST_MIN_P: Final = 0.2


@dataclass(frozen=True, slots=True)
class SampledSetting:
    """Parameters of a request that shape p; of biases and forbidden words, whether it has any."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: bool = False
    bad_words: bool = False

    @property
    def free(self) -> bool:
        """True if it leaves many tokens to choose from: it shows a deployment whose truncation nobody stated."""
        wide = self.top_p >= LEAST_TOP_P and self.min_p <= MOST_MIN_P and not self.logit_bias
        return wide and (self.top_k == 0 or self.top_k >= LEAST_TOP_K)

    def __str__(self) -> str:
        changed = [part.name for part in fields(self)[1:] if getattr(self, part.name) != part.default]
        listed = ("temperature", *changed)
        return ", ".join(f"{name} {getattr(self, name)}" for name in listed).replace(" True", "")


def setting_of(sampling: SamplingParams) -> SampledSetting:
    """The setting of a request."""
    shown = {part.name: getattr(sampling, part.name) for part in fields(SampledSetting)}
    return SampledSetting(**{**shown, "logit_bias": bool(sampling.logit_bias), "bad_words": bool(sampling.bad_words)})


@dataclass(frozen=True, slots=True)
class SampledRange:
    """The sampling of a deployment.

    lowest, highest: its temperatures above 0; None where nobody stated one.
    choices: least tokens that a run must have sampled with a choice.
    settings: all that its requests use; empty where nobody stated them.
    """

    lowest: float | None = None
    highest: float | None = None
    choices: int = CHOICES
    settings: tuple[SampledSetting, ...] = ()

    @property
    def temperatures(self) -> list[float]:
        """All temperatures that it states."""
        ends = (self.lowest, self.highest, *(setting.temperature for setting in self.settings))
        return [end for end in ends if end is not None]


@dataclass(frozen=True, slots=True)
class DeployedScope:
    """How the deployment runs: each candidate arm's record must show it; None asks for nothing.

    weights: quantisation of the target's weights by the engine's name for it, or their dtype.
    models: digests by role, all that the deployment uses; a role that is missing asks for nothing.
    """

    batch_size: int | None = None
    drafted: int | None = None
    shape: str | None = None
    numerics: str | None = None
    device: str | None = None
    context: int | None = None
    engine: str | None = None
    version: str | None = None
    weights: str | None = None
    proposer: str | None = None
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServingProfile:
    """The requests that a deployment serves, and how it runs; `sha256` is the digest of the file that states both."""

    serves: tuple[str, ...] = ()
    sampled: SampledRange = SampledRange()
    deployed: DeployedScope = DeployedScope()
    sha256: str | None = None


NO_PROFILE: Final = ServingProfile()


def profile_of(data: Mapping[str, Any], sha256: str | None = None) -> ServingProfile:
    """The profile in the parts `serves` and `deployed` of a validated document."""
    serves: Mapping[str, Any] = data.get("serves", {})
    stated = {**(serves.get("sampled") or {})}
    settings = tuple(SampledSetting(**setting) for setting in stated.pop("settings", ()))
    deployed = {**data.get("deployed", {})}
    models = {
        role: tuple(digest.removeprefix("sha256:") for digest in digests)
        for role, digests in deployed.pop("models", {}).items()
    }
    scope = DeployedScope(**deployed, models=models)
    return ServingProfile(tuple(serves), SampledRange(**stated, settings=settings), scope, sha256)


def asked_profile(words: Sequence[str]) -> ServingProfile | None:
    """The profile in `--serves`, which is words or one file; None without any.

    Raises:
        UserError: a word that no deployment serves, a file beside other words, or a file that is no profile.
    """
    for word in words:
        if word in SERVABLE:
            continue
        if "/" not in word and Path(word).suffix not in (".yaml", ".yml"):
            known = f"write one of {', '.join(SERVABLE)}, or a serving profile's FILE.yaml"
            raise UserError(f"--serves {quoted(word)}: unknown; {known}")
        if len(words) > 1:
            raise UserError(f"--serves {quoted(word)}: a profile says all that is served; leave the other words out")
        return _read(Path(word))
    return ServingProfile(tuple(dict.fromkeys(words))) if words else None


def _read(path: Path) -> ServingProfile:
    document, policy = read_yaml(path), schemas.load("policy")
    check_document(document, schemas.load("serving-profile"))
    for part in ("serves", "deployed"):
        if part in document.data:
            check_part(document, (part,), policy["properties"][part] | {"$defs": policy["$defs"]})
    return profile_of(document.data, hashlib.sha256(document.raw).hexdigest())


def narrowed(policy: ServingProfile, asked: ServingProfile | None) -> ServingProfile:
    """The profile that a run must show: the deployment's, with what the policy states where it states nothing."""
    if asked is None:
        return policy
    own, ours = asked.sampled, policy.sampled
    ends = own if own.temperatures else ours
    choices, settings = max(own.choices, ours.choices), own.settings or ours.settings
    sampled = SampledRange(ends.lowest, ends.highest, choices, settings)
    return ServingProfile(asked.serves, sampled, asked.deployed, asked.sha256)
