"""Masks computed again from an answer's tokens, and calls read out of them, with the bundled tokenizer."""

import json

import numpy as np
import pytest

from engine.backends.engine_spec import ModelSource
from engine.backends.installed import versions
from engine.backends.local_target import LocalTarget
from engine.backends.vllm.backend import AnswerFacts
from engine.backends.vllm.hooks.scheduler_lines import Dropped, line_of
from engine.backends.vllm.second_masks import SecondMasks
from engine.core.structured import constraint_of
from engine.core.types import Request, SamplingParams, ToolOffer
from engine.record.mask_bits import packed
from engine.record.rows.row_digests import digests

KEY = "structured_outputs_config"
LIBRARIES = {"llguidance": "guidance", "xgrammar": "xgrammar"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ANSWERS = [
    ({"json": SCHEMA}, '{"name": "Ada"}'),
    ({"regex": "[a-z]+ [0-9]{2}"}, "age 55"),
    ({"choice": ["yes", "no"]}, "no"),
    ({"grammar": 'start: "a" ("b" | "c")+'}, "abcb"),
]


@pytest.fixture(scope="module")
def target():
    return LocalTarget(ModelSource("bundled:target"))


def facts_of(library, **settings):
    engine = {f"{KEY}.backend": LIBRARIES[library], **settings}
    return {"grammars": versions(tuple(LIBRARIES)), "settings": {"engine": engine}}


@pytest.fixture(scope="module", params=LIBRARIES)
def masks(request, target):
    found = SecondMasks(target.tokenizer, target.vocabulary, target.eos_ids, facts_of(request.param))
    return request.param, found


def account(masks, target, document, text, *, ended=True):
    library, found = masks
    sampling = SamplingParams(structured=constraint_of(document, library))
    tokens = (*target.bare(text), *(target.eos_ids[:1] if ended else ()))
    return tokens, found.account(sampling, tokens, text)["constraint"]


@pytest.mark.parametrize(("document", "text"), ANSWERS)
def test_an_answer_of_the_grammar_has_a_mask_per_token_and_none_refused(masks, target, document, text):
    tokens, found = account(masks, target, document, text)
    assert (len(found["masks"]), found["refused"], found["whole"]) == (len(tokens), None, True)


@pytest.mark.parametrize(("document", "text"), [({"regex": "[0-9]{2}x"}, "12y"), ({"choice": ["yes", "no"]}, "yet")])
def test_the_first_token_outside_the_grammar_is_named(masks, target, document, text):
    tokens, found = account(masks, target, document, text, ended=False)
    assert found["refused"] is not None
    assert target.tokens.decode(tokens[found["refused"] :]).endswith(text[-1])


def test_the_digest_is_that_of_the_allowed_tokens(masks, target):
    """After two digits and an x nothing but the end is left."""
    _, found = account(masks, target, {"regex": "[0-9]{2}x"}, "12x")
    end = np.zeros((1, target.vocabulary), dtype=np.bool_)
    end[0, list(target.eos_ids)] = True
    assert found["masks"][-1] == f"{int(digests(packed(end))[0]):016x}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grammars": {"xgrammar": "0.0.1"}}, "vLLM has xgrammar 0.0.1 and the audit"),
        ({"settings": {"engine": {f"{KEY}.backend": "outlines"}}}, "vLLM's grammar library is outlines, not xgrammar"),
        (facts_of("xgrammar", **{f"{KEY}.disable_additional_properties": True}), "are not computed again"),
    ],
)
def test_what_cannot_be_computed_again_says_why(target, changes, words):
    masks = SecondMasks(target.tokenizer, target.vocabulary, target.eos_ids, {**facts_of("xgrammar"), **changes})
    _, found = account(("xgrammar", masks), target, {"choice": ["yes"]}, "yes")
    assert words in found["unread"]
    assert "masks" not in found


@pytest.mark.parametrize("compact", [False, True])
def test_blanks_follow_the_engines_setting(target, compact):
    facts = facts_of("xgrammar", **{f"{KEY}.disable_any_whitespace": compact})
    masks = SecondMasks(target.tokenizer, target.vocabulary, target.eos_ids, facts)
    _, found = account(("xgrammar", masks), target, {"json": SCHEMA}, '{ "name": "Ada"}')
    assert (found["refused"] is None) != compact


def test_calls_are_read_from_the_tokens(target):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    text = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    tokens = target.bare(text)
    facts = AnswerFacts(SecondMasks(target.tokenizer, 1, (), {}), target.template, target.decoded)
    request = Request("r", target.bare("Add one."), SamplingParams(), tools=ToolOffer((tool,), "auto"))
    found = facts.facts(request, tokens, text)["tools"]
    assert found["calls"] == [{"name": "add", "arguments": {"a": 1}}]
    assert found["spans"] == [[0, len(tokens)]]
    assert facts.facts(Request("r", (5,), SamplingParams()), tokens, text) == {}


class Output:
    """As much of vLLM's outputs as a line is made of."""

    def __init__(self, drafted, emitted):
        self.scheduled_spec_decode_tokens = drafted
        self.num_scheduled_tokens = dict.fromkeys(emitted, 1)
        self.sampled_token_ids = list(emitted.values())
        self.req_id_to_index = {name: index for index, name in enumerate(emitted)}


def test_a_line_has_the_tokens_that_a_grammar_forbade_in_the_step_they_were_drafted_for():
    dropped = Dropped()
    dropped.note("a", [1, 2, 3], [1])
    dropped.note("b", [4, 5], [4, 5])
    dropped.note("shortened", [6, 7], [6])
    output = Output({"a": [1], "b": [4, 5]}, {"a": [1, 9], "b": [4], "shortened": [8]})
    first = {step["id"]: step.get("forbidden") for step in json.loads(line_of(output, output, dropped, {}))}
    assert first == {"a": [2, 3], "b": None, "shortened": None}
    assert "forbidden" not in line_of(output, output, dropped, {}), "each draft is scheduled once"
