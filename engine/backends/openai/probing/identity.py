"""Which server answers: by what its pages and answers say about it, which nothing proves."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.backends.openai.client import ASIDE_S, Endpoint
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.facts import EndpointFacts
from engine.backends.openai.forms.counter_page import CounterPage
from engine.backends.openai.settings import OpenAISettings

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
    version = pages.facts.version or _build(pages)
    return ServerIdentity(kind, kind if marks else "unknown", version, why)


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
