"""Finds an endpoint's server and protocol by a few small requests.

`probe` asks each question once with a short prompt, so an answer of "yes" says that one request worked, not that every
request does: the checks of a suite decide that.
"""

from dataclasses import dataclass, replace
from typing import Any

from engine.backends.openai.client import Endpoint
from engine.backends.openai.models import probe_endpoint
from engine.backends.openai.probing.contract import Expectation, contract
from engine.backends.openai.probing.identity import ServerIdentity, identify, read_pages
from engine.backends.openai.probing.trials import ProbedFeature, Prober, TrialOutcome, tried
from engine.backends.openai.settings import Api, OpenAISettings
from engine.backends.openai.tokens import TokenOrigin

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
