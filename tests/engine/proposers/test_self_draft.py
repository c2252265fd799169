"""Drafting with a part of the bundled target, in the target's own cache."""

import json
from pathlib import Path

import pytest
import torch

from engine import proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.types import DraftRule, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import load_model
from engine.models.scripted import ScriptedModel, table_script
from engine.proposers.interface import Context, PlainProposer, ProposerParts, TargetSide
from engine.proposers.self_draft import SkipSet
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness, stream_of
from tests.engine.build import spell
from tests.support.tiers import fast_first, slow_unless

PROMPTS = Path(__file__).parents[3] / "suites" / "prompts" / "copy.jsonl"
LAYERS = 4
GAMMA = 3
KINDS = {"early_exit": {"exit_layer": 3}, "layer_skip": {"skip_attention": "1", "skip_ffn": "1"}}
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_new_tokens=24, seed=4)


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    # the same bits whatever the number of tokens, so that equality below is equality
    return load_model("bundled:target", numerics="fixed")


@pytest.fixture(scope="module")
def target(loaded):
    return loaded.model


@pytest.fixture(scope="module")
def prompts(loaded):
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()[:3]]
    texts = [
        loaded.tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        for row in rows
    ]
    return [tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def build(kind, side, options, rule=DraftRule.GREEDY, rows=1, capacity=256):
    return proposers.build(kind, ProposerParts(rows, capacity, rule, draw, (), None, options, target=side))


def generate(target, prompts, sampling, protocol, kind=None, options=None, rows=2):
    verifier = verify.load(protocol)
    capacity = max(len(each) for each in prompts) + sampling.max_new_tokens  # not a column more than the text needs
    cache = target.new_cache(rows, capacity)
    rule = verifier.facts.draft_rule
    proposer = build(kind, TargetSide(target, cache), options, rule, rows, capacity) if kind else PlainProposer()
    loop = Loop(target, proposer, verifier, spell_ids, LoopOptions(rows, GAMMA, capacity, RecordLevel.SCALARS), cache)
    wanted = [Request(f"r{i}", prompt, sampling, stream_of(f"r{i}")) for i, prompt in enumerate(prompts)]
    return {each.request.id: each for each in loop.run(wanted)}


def spell_ids(tokens):
    return spell([token % 26 for token in tokens])


def accepted(generations):
    traces = [decode(each.trace) for each in generations.values()]
    return sum(trace.n_accepted for trace in traces), sum(int(trace.n_drafted.sum()) for trace in traces)


def tokens_of(generations):
    return {name: each.tokens for name, each in generations.items()}


@pytest.mark.medium
@pytest.mark.parametrize("kind", slow_unless(KINDS, ["layer_skip"]))
@pytest.mark.parametrize(
    ("protocol", "sampling"),
    fast_first([(Protocol.GREEDY, GREEDY), (Protocol.GUMBEL, SAMPLED)]),
    ids=["greedy", "gumbel"],
)
@pytest.mark.parametrize("rows", fast_first([2, 1]))
def test_the_output_is_that_of_plain_decoding(kind, protocol, sampling, rows, target, prompts):
    got = generate(target, prompts, sampling, protocol, kind, KINDS[kind], rows)
    assert tokens_of(got) == tokens_of(generate(target, prompts, sampling, protocol))
    kept, drafted = accepted(got)
    assert 0 < kept < drafted


@pytest.mark.medium
@pytest.mark.parametrize(
    ("protocol", "sampling"),
    slow_unless(
        [(Protocol.GREEDY, GREEDY), (Protocol.CHAIN, SAMPLED), (Protocol.GUMBEL, SAMPLED)], [(Protocol.CHAIN, SAMPLED)]
    ),
    ids=["greedy", "chain", "gumbel"],
)
def test_an_exit_after_the_last_layer_is_the_target_itself(protocol, sampling, target, prompts):
    got = generate(target, prompts, sampling, protocol, "early_exit", {"exit_layer": LAYERS})
    traces = [decode(each.trace) for each in got.values()]
    assert all(trace.examined_accepted.all() for trace in traces)
    assert sum(trace.n_accepted for trace in traces) > 20


@pytest.fixture
def drafted(target, prompts):
    """A proposer's chain after a prompt, with the cache that it was drafted in."""

    def draft(kind, options):
        cache, prompt = target.new_cache(2, 256), prompts[0]
        placement = chain_placement([prompt[:-1]], [0], cache.trash, first_row=1)
        target.forward(cache, placement, WantedOutputs(logits=False))
        proposer = build(kind, TargetSide(target, cache), options, rows=2)
        context = Context(1, Request("r", prompt, GREEDY), list(prompt), GAMMA, Randomness(1, 2))
        (proposal,) = proposer.propose([context])
        return cache, proposal.tree.tokens

    return draft


def verify_forward(target, cache, prompt, tokens):
    """What the loop's forward does for row 1."""
    placement = chain_placement([[], [prompt[-1], *tokens]], [0, len(prompt) - 1], cache.trash)
    return target.forward(cache, placement, WantedOutputs()).logits[1]


@pytest.mark.parametrize("exit_layer", range(1, LAYERS + 1))
def test_early_layers_write_what_the_verifying_forward_writes(exit_layer, target, prompts, drafted):
    cache, tokens = drafted("early_exit", {"exit_layer": exit_layer})
    columns = slice(len(prompts[0]) - 1, len(prompts[0]) - 1 + GAMMA)  # root and all drafts but the last
    before = [(cache.keys[i][1, :, columns].clone(), cache.values[i][1, :, columns].clone()) for i in range(LAYERS)]
    verify_forward(target, cache, prompts[0], tokens)
    for layer, (keys, values) in enumerate(before):
        same = [
            torch.equal(keys, cache.keys[layer][1, :, columns]),
            torch.equal(values, cache.values[layer][1, :, columns]),
        ]
        assert same == [layer < exit_layer] * 2
        assert bool(keys.any()) == (layer < exit_layer)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_draft_is_left_after_the_verifying_forward(kind, target, prompts, drafted):
    prompt = prompts[0]
    cache, tokens = drafted(kind, KINDS[kind])
    clean = target.new_cache(2, 256)
    target.forward(clean, chain_placement([prompt[:-1]], [0], clean.trash, first_row=1), WantedOutputs(logits=False))
    assert not torch.equal(cache.all_keys, clean.all_keys)
    logits, expected = (verify_forward(target, each, prompt, tokens) for each in (cache, clean))
    assert torch.equal(logits, expected)
    assert torch.equal(cache.all_keys[..., : cache.capacity, :], clean.all_keys[..., : cache.capacity, :])


def test_the_options_are_recorded_as_they_run(target):
    side = TargetSide(target, target.new_cache(1, 8))
    assert build("early_exit", side, {}).facts.options == {"exit_layer": 2, "stop_below": 0.0}
    facts = build("layer_skip", side, {"skip_attention": " 3, 1,1", "stop_below": 1}).facts
    assert facts.options == {"skip_attention": "1,3", "skip_ffn": "", "stop_below": 1.0}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("early_exit", {"exit_layer": 5}, "exit_layer is 5, but the target has 4 layers"),
        ("early_exit", {"exit_layer": -1}, "exit_layer must be a whole number"),
        ("layer_skip", {"skip_ffn": "0,4"}, "skip_ffn names layer 4, but the target's are 0 to 3"),
        ("layer_skip", {}, "name nothing to skip"),
        ("layer_skip", {"skip_ffn": "", "skip_attention": " "}, "name nothing to skip"),
        *(
            ("layer_skip", {"skip_attention": value}, "skip_attention must be layers from 0 as text")
            for value in ("1,,2", "1,", "-1", "a", "1.5", 3, None, True)
        ),
    ],
)
def test_options_that_name_no_part_are_refused(kind, options, message, target):
    with pytest.raises(InvalidRequest, match=message):
        build(kind, TargetSide(target, target.new_cache(1, 8)), options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_runs_in_part_is_asked_for(kind):
    with pytest.raises(InvalidRequest, match=f"{kind} needs the target and its cache"):
        build(kind, None, KINDS[kind])
    whole = ScriptedModel(table_script(1, 8), 8)
    with pytest.raises(InvalidRequest, match=f"{kind} needs a target that can run in part; use loader: lean"):
        build(kind, TargetSide(whole, whole.new_cache(1, 8)), KINDS[kind])


def test_a_skip_set_leaves_the_other_sublayers():
    skips = SkipSet.read("2,0", "1")
    assert (skips.part(3).attention, skips.part(3).ffn) == ((1,), (0, 2))
    assert SkipSet.read(*skips.options().values()) == skips
    assert len(skips) == 3
