"""The bundled family under grammars: the spelling of its tokens, and equal tokens with and without drafts."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from importlib.resources import files

import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.tokenizer import BLANK, spelling_of, stand_ins, tokens_by
from engine.core.errors import InvalidRequest
from engine.core.structured import constraint_of
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.models.loading import load_tokenizer, open_source
from engine.sampling.rng import stream_of
from tests.engine.constraints.arms import LIBRARIES

ROWS = [
    json.loads(line)
    for line in files("suites").joinpath("prompts/structured.jsonl").read_text(encoding="utf-8").splitlines()
]
TEXTS = ('{"name": "Vamlath", "age": 38}', "caf\u00e9 \u65e5\u672c \U0001f642", " two  blanks\n\ttab", "x = y[0]")


@cache
def tokenizer():
    return load_tokenizer(open_source("bundled:target", None, None).folder)


def test_the_bytes_of_tokens_are_those_of_the_text():
    spelling = tokens_by(tokenizer(), "bundled:target").spell(2050)
    for text in TEXTS:
        assert b"".join(spelling.tokens[token] for token in spelling.encode(text)) == text.encode()
    assert spelling.tokens[2047] == b"</tool_call>"
    assert {spelling.tokens[token] for token in tokenizer().all_special_ids} == {b""}
    assert spelling.tokens[2048:] == (b"", b"")
    assert len(stand_ins()) == len(set(stand_ins().values())) == 256


class _Added:
    def __init__(self, content, special):
        self.content, self.special = content, special


class _Pieces:
    """A tokenizer of pieces, as sentencepiece makes them."""

    def __init__(self, decoder):
        self.backend_tokenizer, self._decoder = self, decoder
        self.all_special_ids, self.added_tokens_decoder = [0], {0: _Added("</s>", True), 3: _Added("<tool>", False)}

    def to_str(self):
        return json.dumps({"decoder": self._decoder})

    def get_vocab(self):
        return {"</s>": 0, f"{BLANK}the": 1, "<0x0A>": 2, "<tool>": 3}


def test_pieces_and_byte_tokens_are_spelled():
    found = spelling_of(_Pieces({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}), 4, list)
    assert found.tokens == (b"", b" the", b"\n", b"<tool>")
    assert found.digest != dataclasses.replace(found, tokens=found.tokens[:3]).digest


def test_another_kind_of_tokenizer_is_refused():
    with pytest.raises(InvalidRequest, match="neither byte-level nor sentencepiece"):
        spelling_of(_Pieces({"type": "WordPiece"}), 4, list)


@cache
def backend():
    return open_backend("native", {"target": ModelSource("bundled:target"), "draft": ModelSource("bundled:draft")})


def decoded(protocol, proposer, library, temperature):
    draft = "draft" if proposer in ("draft_model", "specinfer") else None
    gamma = 6 if proposer == "specinfer" else 4 if proposer else 0
    spec = EngineSpec(protocol, rows=8, level=RecordLevel.TOKENS, proposer=proposer, gamma=gamma, draft=draft)
    engine = backend().arm(spec)
    wanted = []
    for row in ROWS[:30]:
        params = SamplingParams(temperature, max_new_tokens=48, structured=constraint_of(row["structured"], library))
        prompt = engine.encode(Prompt(messages=tuple(row["messages"])))
        wanted.append(Request(row["id"], prompt, params, stream_of(row["id"])))
    return {each.request.id: each.tokens for each in engine.generate(wanted)}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("protocol", "temperature"), [(Protocol.GREEDY, 0.0), (Protocol.GUMBEL, 1.0)])
def test_speculative_tokens_are_those_of_plain_decoding(protocol, temperature, library):
    plain = decoded(protocol, None, library, temperature)
    for proposer in ("draft_model", "ngram", "specinfer"):
        assert decoded(protocol, proposer, library, temperature) == plain, proposer


def test_the_prompts_are_those_that_the_module_makes():
    from engine.train.prompts import structured_rows

    assert structured_rows(120) == ROWS
