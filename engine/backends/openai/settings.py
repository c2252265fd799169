"""The `engine` mapping of a suite as values, and what each kind of server understands.

The schema `engine-openai` has already checked single values; this module checks what a schema cannot express. Of an
API key, the settings hold only the name of the environment variable.

The evidence of an endpoint: its answers, at every record level.

A server may omit requested token ids or log-probabilities; the request then reports a lower level.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from engine.backends.access import OutsideAccess, OutsideKind
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import LoopOwner


class Api(StrEnum):
    """The route of the requests."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    GENERATE = "generate"
    """SGLang's own."""


ROUTES: Final[Mapping[Api, str]] = {
    Api.CHAT: "/chat/completions",
    Api.COMPLETIONS: "/completions",
    Api.GENERATE: "/generate",
}
"""By route: its path below `url`; that of SGLang's own lies below the address without the API's version."""
SPOKEN: Final = (Api.CHAT, Api.COMPLETIONS)
"""Routes of OpenAI's protocol."""


class Streaming(StrEnum):
    """The form of the answers."""

    WHOLE = "whole"
    STREAMED = "streamed"
    BOTH = "both"
    """Each request is sent both ways and both answers must be equal; at temperature 0 only."""


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """The parameters that a kind of server accepts besides OpenAI's own.

    extras: its names of our sampling parameters; all are sent, also those that are off, because servers and models
        bring defaults of their own.
    token_ids: it returns the generated token ids for `return_token_ids`.
    seed_bits: number of bits of the largest seed.
    max_tokens: its name of the length; the completions route has OpenAI's.
    seed: its name of the seed.
    off: its words for parameters that are off, where they are not ours.
    about: pages that state its version, and with it its configuration; the first that answers is read.
    pages: places of its counters below the address; the first that answers is read.
    effective: the settings of that page that an arm's effective configuration holds.
    scaled: its log-probabilities are those after the temperature.
    quiet: its streams leave out the reason of a stop that has none.
    flagged: both routes ask for log-probabilities as chat does.
    fixed: what every request holds besides, so that the parameters mean what they mean in a suite.
    predicts: drafted tokens are counted in the answer's usage as OpenAI counts those of a `prediction`.
    counts_prompt: presence and frequency penalties count the prompt's tokens too, so they are refused.
    """

    extras: Mapping[str, str] = field(default_factory=dict)
    token_ids: bool = False
    seed_bits: int = 63
    max_tokens: str = "max_tokens"
    seed: str = "seed"
    off: Mapping[str, Any] = field(default_factory=dict)
    about: Sequence[str] = ("/version",)
    pages: Sequence[str] = ("/metrics",)
    effective: Sequence[str] = ()
    scaled: bool = False
    quiet: bool = False
    flagged: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    predicts: bool = False
    counts_prompt: bool = False


LLAMA_ORDER: Final = ("penalties", "temperature", "min_p", "top_k", "top_p")
"""llama.cpp's names of the transforms of `engine.sampling.transforms`, in their order; a bias comes before them."""
LLAMA_WINDOW: Final = 2**15
"""Tokens that its repetition penalty sees; the server's own default is 64."""
_COMMON: Final = {
    name: name for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos")
}
DIALECTS: Final[Mapping[str, ServerDialect]] = {
    "openai": ServerDialect(max_tokens="max_completion_tokens"),
    "vllm": ServerDialect(_COMMON, token_ids=True),
    "sglang": ServerDialect(
        _COMMON,
        off={"top_k": -1},
        about=("/server_info", "/get_server_info"),
        effective=(
            *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
            *("speculative_num_draft_tokens", "speculative_draft_model_path"),
        ),
        fixed={"return_spec_tokens_details": True},
        predicts=True,
        scaled=True,
    ),
    "tensorrt-llm": ServerDialect(
        _COMMON,
        pages=("/prometheus/metrics", "/metrics"),
        effective=("spec_method", "spec_num_tokens", "spec_draft_model"),
        quiet=True,
    ),
    "llama.cpp": ServerDialect(
        {"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
        seed_bits=31,
        fixed={"samplers": list(LLAMA_ORDER), "repeat_last_n": LLAMA_WINDOW},
        counts_prompt=True,
    ),
    "mlx-lm": ServerDialect({name: name for name in ("top_k", "min_p", "repetition_penalty")}, flagged=True),
}
NATIVE: Final = replace(
    DIALECTS["sglang"],
    extras={**_COMMON, "min_tokens": "min_new_tokens"},
    token_ids=True,
    max_tokens="max_new_tokens",
    seed="sampling_seed",
    fixed={},
    predicts=False,
)
"""SGLang's parameters on its own route."""
SEEDED: Final = "derived"
"""Each request carries a seed; `none` sends none, as most clients do."""
ADDRESSES: Final = ("url", "metrics_url", "proxy")
PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
PLAIN_ADDRESS: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[^\\?#@\s]*)?", re.I)
"""Addresses that every parser reads alike: the host that is allowed is the host that is asked."""
OWNED: Final = frozenset(
    (
        *"model messages prompt stream stream_options seed temperature top_p presence_penalty logit_bias stop".split(),
        *"frequency_penalty best_of n max_tokens max_completion_tokens logprobs top_logprobs tools tool_choice".split(),
        *"parallel_tool_calls response_format return_token_ids repeat_penalty repeat_last_n samplers".split(),
        *"text input_ids sampling_params return_logprob top_logprobs_num logprob_start_len".split(),
        *("return_text_in_logprobs", "return_prompt_token_ids", *_COMMON),
    )
)
"""Parts of a request that come from the suite's other keys and that `body` may not set."""


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """One endpoint and the form of its requests; `schemas/engine-openai.json` describes each field."""

    url: str
    model: str | None = None
    api: Api = Api.CHAT
    server: str = "openai"
    stream: Streaming = Streaming.WHOLE
    logprobs: int = 2
    api_key_env: str | None = None
    timeout_s: float = 300.0
    silence_s: float = 60.0
    connect_s: float = 10.0
    tries: int = 5
    backoff_s: float = 0.5
    max_wait_s: float = 60.0
    requests_per_minute: float | None = None
    metrics_url: str | None = None
    proxy: str | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Mapping[str, Any] | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    baseline_body: Mapping[str, Any] = field(default_factory=dict)
    seeds: str = SEEDED
    answers_as: str | None = None
    expects: Mapping[str, Any] = field(default_factory=dict)
    instance_headers: Sequence[str] = ()

    @property
    def dialect(self) -> ServerDialect:
        """The parameters that the server accepts."""
        return NATIVE if self.api is Api.GENERATE else DIALECTS[self.server]

    @property
    def routes(self) -> tuple[Api, ...]:
        """The routes that a probe tries, in this order."""
        return (self.api,) if self.api is Api.GENERATE else SPOKEN

    @property
    def root(self) -> str:
        """The server's address without the version of the API."""
        return self.url.removesuffix("/v1")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The addresses of the server's counters; the first that answers counts."""
        return (self.metrics_url,) if self.metrics_url else tuple(self.root + page for page in self.dialect.pages)

    def address(self, path: str) -> str:
        """The address of a route."""
        return (self.root if self.api is Api.GENERATE else self.url) + path


def settings_of(given: Mapping[str, Any]) -> OpenAISettings:
    """The settings of one arm. Raises InvalidRequest: an invalid value; the message names its key."""
    if "url" not in given:
        raise InvalidRequest(
            "engine: url is missing; write the address of the server, such as http://127.0.0.1:8000/v1"
        )
    for key in ADDRESSES:
        if given.get(key) is not None:
            origin_of(key, str(given[key]))
    for key in ("body", "baseline_body"):
        owned = sorted(OWNED & set(given.get(key, {})))
        if owned:
            raise InvalidRequest(f"engine: {key} may not set {owned[0]}; the suite's own keys do")
        if len(json.dumps(given.get(key, {}))) > 2**20:
            raise InvalidRequest(f"engine: {key} has more than a megabyte; make it smaller")
    kinds = {"api": Api, "stream": Streaming}
    values: dict[str, Any] = {key: kinds[key](value) if key in kinds else value for key, value in given.items()}
    if values.get("api") is Api.GENERATE and values.get("server") != "sglang":
        raise InvalidRequest("engine: api generate is SGLang's own route; set server to sglang, or api to completions")
    return OpenAISettings(**{**values, "url": str(given["url"]).rstrip("/")})


@dataclass(frozen=True, slots=True)
class ServerOrigin:
    """Scheme, host in lower case, and port of an address. A key is sent to one origin only."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def origin_of(key: str, address: str) -> ServerOrigin:
    """The origin of an address with a host, and without a password: addresses are stored with the run.

    Raises:
        InvalidRequest: another text; the message names `key`.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"engine: {key} is no address ({error})") from error
    if parts.scheme not in PORTS or not parts.hostname:
        raise InvalidRequest(f"engine: {key} is no address; write http://HOST:PORT/v1")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"engine: {key} holds a user or a password; name the variable with the key in api_key_env")
    if parts.query or parts.fragment:
        raise InvalidRequest(f"engine: {key} has a query or a fragment; write the address without")
    match = PLAIN_ADDRESS.fullmatch(address)
    if match is None:
        raise InvalidRequest(f"engine: {key} is no plain address; write http://HOST:PORT/v1 in ASCII, without blanks")
    return ServerOrigin(parts.scheme, match[1].lower(), PORTS[parts.scheme] if port is None else port)


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The variable and the hosts that an arm's engine settings name. Raises InvalidRequest: an address that is none."""
    variable = engine.get("api_key_env")
    result = [] if variable is None else [OutsideAccess(OutsideKind.VARIABLE, str(variable), "engine.api_key_env")]
    for key in ADDRESSES:
        if engine.get(key) is not None:
            result.append(OutsideAccess(OutsideKind.HOST, str(origin_of(key, str(engine[key]))), f"engine.{key}"))
    return tuple(result)


_ANSWERED: Final = (Part.TEXT, Part.DECODED, Part.CALLS, Part.ACCOUNTS, Part.IDENTITY, Part.LOGPROBS)
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels({RecordLevel.TOKENS: (1, frozenset(_ANSWERED))})
"""With log-probabilities, which the setting `logprobs: 0` turns off; they name the tokens that make the text."""
SERVED: Final = "served:"
COUNTING: Final = ("vllm", "llama.cpp", "sglang")
"""Servers that may report counts of drafts with an answer."""


def level_of(settings: OpenAISettings) -> int:
    """The arm's evidence level."""
    return LEVELS[RecordLevel.TOKENS].level if settings.logprobs else 0


def rule_of(plan_rule: Protocol, *, plain: bool) -> Protocol:
    """The rule in the records. A server does not report how it draws, so its plain arms are not coupled."""
    return Protocol.CHAIN if plain and plan_rule is Protocol.GUMBEL else plan_rule


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence, by the endpoint's settings. Raises InvalidRequest: an invalid setting."""
    plan, own = settings.plan, settings_of(settings.plan.engine)
    local = not settings.target.source.startswith(SERVED)
    parts = set(LEVELS[plan.level].parts)
    if not own.logprobs:
        parts.discard(Part.LOGPROBS)
    if local:
        parts.add(Part.REFERENCE)
    # the end tokens of a served model without local files are unknown
    if local and own.dialect.token_ids:
        parts.add(Part.TOKENS)
    elif not own.logprobs:
        parts.discard(Part.DECODED)
    if plan.proposer is not None and own.server in COUNTING:
        parts.add(Part.COUNTS)
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(own),
        parts=frozenset(parts),
        protocol=rule_of(plan.protocol, plain=plan.proposer is None),
        seeded=own.seeds == SEEDED,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
