"""Arms of scripted models under a grammar. The last letter of their alphabet is the end token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native import ALPHABET
from engine.core.structured import constraint_of
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.sampling.rng import stream_of

END = len(ALPHABET) - 1
SENTENCE = {"regex": r"[a-m]{2,5}( [a-m]{2,5}){0,3}[.!?]"}
LARK = {"grammar": 'start: word ("," " " word)* "."\nword: /[a-h]{1,4}/'}
CHOICE = {"choice": ["red, green", "red, blue", "amber", "am"]}
GRAMMARS = (SENTENCE, LARK, CHOICE)
LIBRARIES = ("llguidance", "xgrammar")
DRAFTS = {"draft_model": {}, "ngram": {}, "suffix": {}, "specinfer": {"widths": "2,1,1"}}


@cache
def backend():
    return open_backend("scripted", {"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})


def sampling(grammar: Mapping[str, Any], library: str = "llguidance", **more: Any) -> SamplingParams:
    given: dict[str, Any] = {"max_new_tokens": 40, "stop_token_ids": (END,), "seed": 7, **more}
    return SamplingParams(structured=constraint_of(grammar, library), **given)


def requests(count: int, *params: SamplingParams) -> list[Request]:
    """Requests with the parameters in turn."""
    prompts = [tuple((i * 7 + j * (i + 3)) % 26 for j in range(2 + i % 5)) for i in range(count)]
    return [Request(f"r{i}", prompt, params[i % len(params)], stream_of(f"r{i}")) for i, prompt in enumerate(prompts)]


def decoded(
    protocol: Protocol,
    proposer: str | None,
    wanted: Sequence[Request],
    *,
    level: RecordLevel = RecordLevel.FULL,
    rows: int = 4,
    fault: str | None = None,
) -> dict[str, Generation]:
    drafts = proposer in ("draft_model", "specinfer")
    spec = EngineSpec(
        protocol,
        rows=rows,
        level=level,
        proposer=proposer,
        gamma=4 if proposer else 0,
        draft="draft" if drafts else None,
        options=DRAFTS.get(proposer or "", {}),
        fault=fault,
    )
    return {each.request.id: each for each in backend().arm(spec).generate(wanted)}
