"""Finds an endpoint's server and protocol by a few small requests.

`probe` asks each question once with a short prompt, so an answer of "yes" says that one request worked, not that every
request does: the checks of a suite decide that.

Which server answers: by what its pages and answers say about it, which nothing proves.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from engine.backends.openai.client import ASIDE_S, Endpoint
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.facts import EndpointFacts
from engine.backends.openai.forms.counter_page import CounterPage
from engine.backends.openai.models import probe_endpoint
from engine.backends.openai.probing.contract import Expectation, contract
from engine.backends.openai.probing.trials import ProbedFeature, Prober, TrialOutcome, tried
from engine.backends.openai.settings import Api, OpenAISettings
from engine.backends.openai.tokens import TokenOrigin

OWNERS: Final[Mapping[str, str]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "tensorrt-llm",
}
"""The kind of server by the owner in its list of models."""
METRICS: Final[Mapping[str, str]] = {
    "sglang:": "sglang",
    "llamacpp:": "llama.cpp",
    "trtllm_": "tensorrt-llm",
    "vllm:": "vllm",
}
"""The kind by a prefix of its metrics' names; the last also names metrics of other servers."""
MLX: Final = re.compile(r"\d+\.\d+\.\d+-\d+\.\d+\.\d+-.*")
"""mlx_lm's fingerprint: its version, that of mlx, the platform."""


@dataclass(frozen=True, slots=True)
class ServerPages:
    """A server's account of itself beside its answers."""

    facts: EndpointFacts
    metrics: str
    properties: Mapping[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's kind, as `engine.server` of a suite names it, its product and the reasons.

    version: as it reports it; None if it does not.
    """

    kind: str
    product: str
    version: str | None
    why: tuple[str, ...]


def read_pages(settings: OpenAISettings, endpoint: Endpoint, facts: EndpointFacts, fingerprint: str) -> ServerPages:
    """The pages that differ between servers; a page that is not there is empty."""
    try:
        json = endpoint.get_json(f"{settings.root}/props", ASIDE_S)
    except AttemptError:
        json = {}
    metrics = CounterPage(endpoint.aside, settings.metrics).read()
    return ServerPages(facts, metrics, json if isinstance(json, Mapping) else {}, fingerprint)


def identify(pages: ServerPages, named: str | None = None) -> ServerIdentity:
    """The kind of server: the one that has the asked route, or by its strongest mark; `openai` if it has none."""
    marks = [(named, "the user asked for its route"), *_marks(pages)] if named else _marks(pages)
    kind = marks[0][0] if marks else "openai"
    why = tuple(reason for name, reason in marks if name == kind)
    return ServerIdentity(kind, kind if marks else "unknown", pages.facts.version or _build(pages), why)


def _marks(pages: ServerPages) -> list[tuple[str, str]]:
    """Kind and reason, strongest first."""
    result = []
    owner = str(pages.facts.listed.get("owned_by", ""))
    if owner in OWNERS:
        result.append((OWNERS[owner], f"the model's owner is {owner}"))
    if "default_generation_settings" in pages.properties:
        result.append(("llama.cpp", "it has a page of properties"))
    if MLX.fullmatch(pages.fingerprint):
        result.append(("mlx-lm", "its fingerprint names the version of mlx"))
    lines = pages.metrics.splitlines()
    result += [
        (kind, f"its metrics are named {prefix}...")
        for prefix, kind in METRICS.items()
        if any(line.startswith(prefix) for line in lines)
    ]
    return result


def _build(pages: ServerPages) -> str | None:
    build = pages.properties.get("build_info")
    if isinstance(build, str):
        return build[:80]
    return pages.fingerprint[:80] or None if MLX.fullmatch(pages.fingerprint) else None


__all__ = ["EndpointProbe", "ProbedFeature", "ServerIdentity", "TrialOutcome", "probe"]


@dataclass(frozen=True, slots=True)
class EndpointProbe:
    """One probed endpoint.

    context: most tokens of prompt and answer; None if not reported.
    speculates: None if the server does not say.
    tokens: where a record would take its token ids from.
    level: the evidence level of such records.
    api: the route that a suite would use; None if no route answers.
    """

    url: str
    model: str
    identity: ServerIdentity
    context: int | None
    speculates: bool | None
    counters: bool
    features: tuple[ProbedFeature, ...]
    tokens: TokenOrigin
    level: int
    api: Api | None

    def holds(self, name: str) -> bool:
        """True if a feature was tried and held."""
        return any(feature.name == name and feature.outcome is TrialOutcome.YES for feature in self.features)

    def contract(self) -> tuple[Expectation, ...]:
        """The expectations of a server of this kind, and whether they hold."""
        return contract(self.identity.kind, speculates=self.speculates, features=self.features)

    def to_json(self) -> dict[str, Any]:
        """The probe as a JSON object."""
        return {
            "url": self.url,
            "model": self.model,
            "server": {"kind": self.identity.kind, "product": self.identity.product, "why": list(self.identity.why)},
            "version": self.identity.version,
            "context": self.context,
            "speculates": self.speculates,
            "counters": self.counters,
            "features": [
                {"feature": feature.name, "outcome": feature.outcome.value, "detail": feature.detail}
                for feature in self.features
            ],
            "tokens": self.tokens.value,
            "level": self.level,
            "api": None if self.api is None else self.api.value,
        }


def probe(settings: OpenAISettings) -> EndpointProbe:
    """Probe an endpoint, with about forty requests of at most 64 tokens.

    Raises:
        InvalidRequest: the variable of the key holds none.
        EngineError: the endpoint does not answer, refuses the key, or does not have the model.
    """
    with Endpoint(settings) as endpoint:
        served = probe_endpoint(settings, endpoint)
        fingerprint = Prober(settings, endpoint, served.model).fingerprint()
        own = settings.server if settings.api is Api.GENERATE else None
        identity = identify(read_pages(settings, endpoint, served, fingerprint), own)
        features = tried(Prober(replace(settings, server=identity.kind), endpoint, served.model))
    yes = {feature.name for feature in features if feature.outcome is TrialOutcome.YES}
    route = next((api for api in settings.routes if api.value in yes), None)
    return EndpointProbe(
        url=settings.url,
        model=served.model,
        identity=identity,
        context=served.context,
        speculates=served.speculates,
        counters=served.counters,
        features=features,
        tokens=_origin(yes),
        level=1 if "logprobs" in yes else 0,
        api=route,
    )


def _origin(yes: set[str]) -> TokenOrigin:
    if "token ids" in yes:
        return TokenOrigin.SERVER
    return TokenOrigin.LOGPROBS if "ids in logprobs" in yes else TokenOrigin.CHARACTERS
