"""Random JSON Schemas: no invalid answer, no exception; and the two libraries on each other's answers."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from audit.checks.schema_conformance.judges import judge_of
from engine import proposers, verify
from engine.constraints.compiled import BYTES, Grammars, open_library
from engine.constraints.interface import TokenSpelling
from engine.core.structured import ConstraintSpec, constraint_of
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.scripted import ScriptedModel, blended_script, table_script
from engine.proposers.interface import ProposerParts
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of
from tests.engine.constraints.schemas import schema

PIECES = (b'{"', b'": ', b'", "', b", ", b'"}', b"true", b"\xc3\xa9", b"null", b"12", b'\\"', b"ab")
SPELLING = TokenSpelling((*(bytes([byte]) for byte in range(256)), *PIECES, b""), lambda text: list(text.encode()))
END = len(SPELLING.tokens) - 1
GRAMMARS = Grammars(lambda: SPELLING, (END,))


def written(tokens) -> str:
    return b"".join(SPELLING.tokens[token] for token in tokens).decode("utf-8", "replace")


@cache
def models():
    size = len(SPELLING.tokens)
    target, other = table_script(3, size, order=1), table_script(4, size, order=1)

    def readable(script):
        """Letters and ends are likelier than control bytes, so that answers end."""
        lean = np.full(size, -4.0)
        lean[32:127], lean[256:], lean[END], lean[ord('"')] = 0.0, 1.0, 6.0, 5.0
        return lambda prefix: script(prefix) + lean

    return [
        ScriptedModel(readable(each), size, eos_ids=(END,)) for each in (target, blended_script(other, target, 0.7))
    ]


def answers(specs):
    target, draft = models()
    verifier = verify.load(Protocol.CHAIN)
    proposer = proposers.build("draft_model", ProposerParts(8, 200, verifier.facts.draft_rule, draw, (END,), draft))
    options = LoopOptions(8, 4, 200, RecordLevel.TOKENS, record=False)
    loop = Loop(target, proposer, verifier, written, options, grammars=GRAMMARS)
    wanted = [
        Request(
            f"r{i}", (65, 66 + i % 20), SamplingParams(1.0, max_new_tokens=120, structured=spec), stream_of(f"f{i}")
        )
        for i, spec in enumerate(specs)
    ]
    return {int(each.request.id[1:]): each for each in loop.run(wanted)}


def specs_from(seed: int, count: int) -> list[ConstraintSpec]:
    rng = random.Random(seed)
    return [constraint_of({"json": schema(rng)}) for _ in range(count)]


def assert_valid(specs, least):
    finished = 0
    for index, answer in answers(specs).items():
        if answer.finish_reason is FinishReason.EOS:
            finished += 1
            assert judge_of(specs[index])(written(answer.tokens[:-1])).problem is None, specs[index].source
    assert finished >= least


def test_random_schemas_give_valid_answers():
    assert_valid(specs_from(1, 20), 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_300_random_schemas_give_valid_answers(seed):
    assert_valid(specs_from(seed, 50), 40)


OBJECT = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
DIFFERENTIAL = (
    ({"regex": "a(b|c)*d{2,3}"}, ["add", "abcbddd", "ad", "abdddd", "", "acdd "]),
    ({"choice": ["yes", "no, thanks", "n"]}, ["yes", "n", "no", "no, thanks", "Yes"]),
    ({"grammar": 'start: pair+\npair: "(" pair* ")"'}, ["()", "(())()", "(", ")(", "(()"]),
    ({"json": {"type": "integer"}}, ["0", "-12", "01", "1.0", '"1"', "+1"]),
    (
        {
            "json": {
                "type": "object",
                "properties": {"a": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        },
        ['{"a": true}', '{"a":false}', "{}", '{"a": 1}', '{"a": true, "b": 1}', '{"a": true'],
    ),
    ({"json": {"enum": ["x", 2, None]}}, ['"x"', "2", "null", '"y"', "3"]),
)


def accepts(document, library, text) -> bool:
    matcher = open_library(library, BYTES).compile(constraint_of(document, library))()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.complete()


@pytest.mark.parametrize("document", [each for each, _ in DIFFERENTIAL], ids=lambda each: next(iter(each)))
def test_both_libraries_accept_the_same_texts(document):
    texts = next(texts for known, texts in DIFFERENTIAL if known is document)
    found = {text: [accepts(document, library, text) for library in ("llguidance", "xgrammar")] for text in texts}
    assert {text: verdict for text, verdict in found.items() if len(set(verdict)) > 1} == {}
    assert {True, False} == {verdict[0] for verdict in found.values()}
