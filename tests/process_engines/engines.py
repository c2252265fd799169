"""The engines that run in processes of their own, one table, and what their tests share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.backends.interface import Prompt
from engine.backends.process.convert import MANIFEST, digests
from engine.core.types import Protocol, Request, SamplingParams
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform

TEXTS = ("def add(a, b):\n    return a + b\n\ndef add3(a, b, c):\n", '{"name": "Ada", "name": "', "one two one two one")
DRAFT = {"proposer": "draft_model", "gamma": 4, "draft": "draft"}


@dataclass(frozen=True)
class TestedEngine:
    """One engine.

    mark: of its tests. format: of its converted models, which names its setting too; None if it needs none.
    repeating, matched, stopping: arms for which the shared tests of that name hold. sampled: how they sample.
    possible: parameters beside which no arm of `bounded` emits a token of probability 0.
    """

    __test__ = False

    name: str
    mark: str
    format: str | None
    draft: str
    arms: dict[str, dict[str, Any]]
    repeating: tuple[str, ...]
    matched: tuple[str, ...]
    stopping: tuple[str, ...]
    sampled: SamplingParams
    bounded: tuple[str, ...] = ()
    possible: dict[str, SamplingParams] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, str]:
        return {"target": "bundled:target", "draft": self.draft}


LLAMA = TestedEngine(
    "llama_cpp",
    "llama",
    "gguf",
    "bundled:medium_draft",
    {
        "plain": {},
        "draft": DRAFT,
        "drawn": {**DRAFT, "options": {"probabilistic": True}},
        "simple": {"proposer": "ngram_simple", "gamma": 4, "options": {"size_n": 2}},
        "map-k": {"proposer": "ngram_map_k", "gamma": 4, "options": {"size_n": 2}},
        "map-k4v": {"proposer": "ngram_map_k4v", "gamma": 4, "options": {"size_n": 2}},
        "mod": {"proposer": "ngram_mod", "gamma": 4, "options": {"n_match": 2}},
    },
    repeating=("plain",),
    matched=("draft", "simple", "map-k", "map-k4v", "mod"),
    stopping=(),
    sampled=SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=32),
)
ORT = TestedEngine(
    "onnxruntime_genai",
    "ort",
    "onnx",
    "bundled:medium_draft",
    {
        "plain": {},
        "draft": DRAFT,
        "adaptive": {**DRAFT, "options": {"min_adaptive_k": 2}},
        "ngram": {"proposer": "ngram", "gamma": 4, "options": {"ngram_size": 3}},
        "chained": {"proposer": "ngram", "gamma": 4, "options": {"ngram_size": 2, "ngram_chained_lookup": True}},
    },
    repeating=("plain", "draft", "ngram"),
    matched=("ngram",),
    stopping=("plain", "draft", "ngram"),
    sampled=SamplingParams(temperature=0.8, max_new_tokens=32),
    bounded=("plain", "draft"),
    possible={
        "top_k": SamplingParams(temperature=0.7, top_k=5),
        "top_p": SamplingParams(temperature=1.0, top_k=20, top_p=0.9, repetition_penalty=1.3),
        "penalties": SamplingParams(temperature=1.0, repetition_penalty=2.0, min_tokens=12),
        "one": SamplingParams(temperature=1.0, top_k=1),
    },
)
OPENVINO = TestedEngine(
    "openvino_genai",
    "openvino",
    "openvino",
    "bundled:medium_draft",
    {
        "plain": {},
        "draft": DRAFT,
        "confident": {**DRAFT, "options": {"assistant_confidence_threshold": 0.4}},
        "lookup": {"proposer": "prompt_lookup", "gamma": 4, "options": {"max_ngram_size": 2}},
    },
    repeating=("plain", "lookup"),
    matched=("lookup",),
    stopping=("plain", "draft", "confident", "lookup"),
    sampled=SamplingParams(temperature=0.8, max_new_tokens=32),
    bounded=("plain", "lookup"),
    possible={
        "top_k": SamplingParams(temperature=0.7, top_k=5),
        "top_p": SamplingParams(temperature=1.0, top_k=20, top_p=0.9, repetition_penalty=1.3),
        "min_p": SamplingParams(temperature=1.0, min_p=0.1, presence_penalty=1.0, frequency_penalty=0.5),
        "penalties": SamplingParams(temperature=1.0, repetition_penalty=2.0, presence_penalty=0.5),
    },
)
MLX = TestedEngine(
    "mlx_lm",
    "mlx",
    None,
    "bundled:draft",
    {"plain": {}, "draft": DRAFT},
    repeating=("draft",),
    matched=(),
    stopping=("plain", "draft"),
    sampled=SamplingParams(temperature=0.8, max_new_tokens=24),
    bounded=("plain", "draft"),
    possible={
        "top_k": SamplingParams(temperature=0.7, top_k=5),
        "top_p": SamplingParams(temperature=1.0, top_p=0.6),
        "min_p": SamplingParams(temperature=1.0, min_p=0.2, top_k=8),
        "penalties": SamplingParams(
            temperature=1.0, top_k=3, presence_penalty=1.0, frequency_penalty=0.5, logit_bias=((69, -4.0),)
        ),
    },
)
ENGINES = (LLAMA, ORT, OPENVINO, MLX)


def only(engine):
    """The marks of a file about one engine."""
    mark = getattr(pytest.mark, engine.mark)
    return [mark, pytest.mark.parametrize("engine", [pytest.param(engine, id=engine.mark)], indirect=True)]


def cases(*rows):
    """Parameters of a test: an engine and a further value each."""
    return [
        pytest.param(engine, value, marks=getattr(pytest.mark, engine.mark), id=f"{engine.mark}-{value}")
        for engine, value in rows
    ]


def requests_of(arm, sampling):
    return [
        Request(f"r{at}", arm.encode(Prompt(text=text)), sampling, stream_of(str(at))) for at, text in enumerate(TEXTS)
    ]


def generated(arm, sampling):
    """The answers, whose accounts agree."""
    answers = list(arm.generate(requests_of(arm, sampling)))
    assert [answer.facts.get("error") for answer in answers] == [None] * len(TEXTS)
    accounts = [answer.facts["reconciliation"] for answer in answers]
    assert [(account["mismatches"], account.get("faults", [])) for account in accounts] == [([], [])] * len(TEXTS)
    return answers


def tokens_of(answers):
    return [answer.tokens for answer in answers]


def escaped(arm, name, sampling):
    """Tokens of probability 0, by the engine's rows or a reference pass, as the parameters transform them here."""
    asked, count, tested = replace(sampling, max_new_tokens=24), 0, arm(name, Protocol.CHAIN)
    for answer in generated(tested, asked):
        rows, history = decode(answer.trace).logits, list(answer.request.prompt)
        if not len(rows):
            raw = replace(answer.request, sampling=SamplingParams(max_new_tokens=24))
            rows = decode(arm(name).anchor(raw, answer.tokens).trace).logits
        for row, token in zip(rows, answer.tokens, strict=True):
            p = transform(row, history, len(answer.request.prompt), asked, tested.target.eos_ids).p
            count += p[token] == 0
            history.append(token)
    return count


def sign_again(folder):
    """Let the manifest of a converted model agree with its files."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["result"]["files"] = digests(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest))
