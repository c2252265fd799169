"""Opening endpoints: reachability, the served model, and the endpoint's own facts.

These requests precede any storage, so that a wrong address, key or model gives a one-line error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.openai.backend import AnchoredEngine, ArmParts, OpenAIEngine
from engine.backends.openai.client import Endpoint, version_of
from engine.backends.openai.documents import BRIEF, brief
from engine.backends.openai.errors import AttemptError, FailureKind
from engine.backends.openai.facts import EndpointFacts
from engine.backends.openai.forms.counter_page import ITERATIONS, CounterPage
from engine.backends.openai.server_counters import CONFIGURED, counters, labels_of, speculates
from engine.backends.openai.settings import SEEDED, OpenAISettings, settings_of
from engine.backends.openai.tokens import CharacterCodec, LocalCodec
from engine.core.errors import EngineError, InvalidRequest
from engine.core.types import Protocol

if TYPE_CHECKING:
    from engine.backends.local_target import LocalTarget

SERVED: Final = "served:"
LLAMA: Final = "llamacpp"
"""The owner of models that llama.cpp lists."""
ALGORITHM: Final = "speculative_algorithm"
"""SGLang's setting, null without drafts."""
NAMED: Final = 8
"""Number of models that a message lists."""


class OpenAIBackend:
    """The endpoints of a suite, opened arm by arm.

    Raises:
        ModelError: the target's files are no model.
        InvalidRequest: models besides the target.
    """

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        others = sorted(set(models) - {"target"})
        if others:
            raise InvalidRequest(f"models: a server has its own {others[0]}; name the target alone")
        self._source = models["target"]
        self._local = None if self._source.source.startswith(SERVED) else _local(self._source)
        self._seen: dict[str, EndpointFacts] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """The target's files, or only its name, whose digest is no digest of weights."""
        if self._local is not None:
            return (self._local.facts("target"),)
        source = self._source.source
        name = hashlib.sha256(source.encode()).hexdigest()
        return (ModelFacts("target", source, None, name, None, {"facts": {"weights": "not seen: a served model"}}),)

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend at the arm's endpoint.

        Raises:
            InvalidRequest: an invalid setting.
            EngineError: the endpoint does not answer, refuses the key, or does not have the model.
        """
        if plan.options or plan.drafts:
            raise InvalidRequest("the server chooses how it drafts; remove the proposer's options and models")
        if plan.verifier_options:
            raise InvalidRequest("the server chooses how it verifies; remove the verifier's options")
        settings = self._named(settings_of(plan.engine))
        if plan.proposer is not None and plan.protocol is Protocol.GUMBEL and settings.seeds != SEEDED:
            raise InvalidRequest("verifier gumbel shares random numbers by seeds; remove engine.seeds or use chain")
        served = self._served(settings)
        codec = CharacterCodec() if self._local is None else LocalCodec(self._local)
        parts = ArmParts(settings, served, codec)
        return OpenAIEngine(plan, parts) if self._local is None else AnchoredEngine(plan, parts, self._local)

    def _named(self, settings: OpenAISettings) -> OpenAISettings:
        source = self._source.source
        if settings.model is not None or not source.startswith(SERVED):
            return settings
        return replace(settings, model=source.removeprefix(SERVED))

    def _served(self, settings: OpenAISettings) -> EndpointFacts:
        known = json.dumps([settings.url, settings.model, settings.api_key_env, settings.metrics, settings.server])
        if known not in self._seen:
            with Endpoint(settings) as endpoint:
                self._seen[known] = probe_endpoint(settings, endpoint)
        return self._seen[known]


def probe_endpoint(settings: OpenAISettings, endpoint: Endpoint) -> EndpointFacts:
    """The endpoint's own facts. Raises EngineError: it does not answer, or lacks the model."""
    url = f"{settings.url}/models"
    try:
        document = endpoint.get_json(url, settings.connect_s + settings.silence_s)
    except AttemptError as attempt_error:
        raise EngineError(f"{settings.url}: {_mend(attempt_error, settings)}") from None
    listed = _entry(settings, document)
    page, about = CounterPage(endpoint.aside, settings.metrics).read(), endpoint.about()
    told = {**labels_of(page, CONFIGURED), **about}
    llama = listed.get("owned_by") == LLAMA
    context = _context_of_llama(listed) if llama else listed.get("max_model_len")
    return EndpointFacts(
        model=settings.model or str(listed["id"]),
        listed={str(key)[:BRIEF]: brief(value) for key, value in list(listed.items())[:BRIEF]},
        version=version_of(about),
        context=context if isinstance(context, int) else None,
        speculates=_slots_speculate(endpoint, settings) if llama else _speculates(page, about),
        counters=bool(counters(page)) or page.startswith(ITERATIONS),
        effective={key: brief(told[key]) for key in settings.dialect.effective if key in told},
    )


def _speculates(page: str, about: Mapping[str, Any]) -> bool | None:
    """By SGLang's settings, else by the counters."""
    return about[ALGORITHM] is not None if ALGORITHM in about else speculates(page)


def _context_of_llama(listed: Mapping[str, Any]) -> Any:
    meta = listed.get("meta")
    return meta.get("n_ctx") if isinstance(meta, Mapping) else None


def _local(source: ModelSource) -> LocalTarget:
    # imported late: a model that is only served needs no torch
    from engine.backends.local_target import LocalTarget

    return LocalTarget(source)


def _slots_speculate(endpoint: Endpoint, settings: OpenAISettings) -> bool | None:
    """Whether llama.cpp's slots speculate; None if the server hides them or they differ."""
    slots = endpoint.aside_json(f"{settings.root}/slots")
    result = {slot.get("speculative") for slot in slots if isinstance(slot, Mapping)} if isinstance(slots, list) else ()
    return next(iter(result)) is True if len(result) == 1 and None not in result else None


def _mend(attempt_error: AttemptError, settings: OpenAISettings) -> str:
    variable = settings.api_key_env
    if attempt_error.status in (401, 403):
        mend = f"look at the key in {variable}" if variable else "name the variable with the key in engine.api_key_env"
        return f"the server refuses us ({attempt_error.message}); {mend}"
    if attempt_error.status == 404:
        return f"the server has no list of models ({attempt_error.message}); does the address end in /v1?"
    if attempt_error.kind in (FailureKind.ENGINE_DIED, FailureKind.TIMEOUT):
        return f"{attempt_error.message}; is the server running?"
    return f"the list of models cannot be read ({attempt_error.message})"


def _entry(settings: OpenAISettings, document: Any) -> Mapping[str, Any]:
    data = document.get("data") if isinstance(document, Mapping) else None
    entries = (
        [datum for datum in data if isinstance(datum, Mapping) and "id" in datum] if isinstance(data, list) else []
    )
    names = [str(entry["id"]) for entry in entries]
    if not entries:
        raise EngineError(f"{settings.url}: the list of models is empty or malformed; is this the address of the API?")
    if settings.model is None and len(entries) > 1:
        raise EngineError(f"{settings.url}: several models are served, {_told(names)}; set engine.model to one of them")
    if settings.model is not None and settings.model not in names:
        raise EngineError(f"{settings.url}: no model {settings.model!r} is served, there is {_told(names)}")
    return entries[0 if settings.model is None else names.index(settings.model)]


def _told(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:NAMED]) + (", ..." if len(names) > NAMED else "")
