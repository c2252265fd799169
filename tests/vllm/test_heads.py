"""Heads that our trainers wrote, in vLLM: read as they are, the same logits, the same drafts, the target's tokens."""

import numpy as np
import pytest
import torch

from engine.core.types import Request, SamplingParams
from engine.record.metrics import acceptance, accepted_by_step
from engine.record.trace import decode
from engine.sampling.rng import stream_of

from . import setting
from .replay import HEADS, difference, hidden, theirs
from .setting import GAMMA, TOKENS

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-4
"""Of logits in float32, both engines with their own kernels."""
STEP = GAMMA + 1


@pytest.fixture(scope="module")
def target():
    return setting.our_target()


def forwards(calls):
    return [call for call in calls if call["what"] == "forward"]


def test_vllm_reads_the_folder_into_the_class_of_the_method(case, served):
    assert served.module == case.module
    assert all(forwards(calls) for calls in served.forwards)


def test_the_same_inputs_give_the_same_logits(case, served, target):
    """Every row of every forward of vLLM's drafting, of prompts and drafts, over the keys of the rows before."""
    worst, rows = 0.0, 0
    for calls in served.forwards:
        ours = HEADS[case.kind](case, target)
        for call in forwards(calls):
            said = theirs(call)
            worst, rows = max(worst, difference(ours.logits(call["read"]), said)), rows + len(said)
    print(f"{case.kind}: {rows} rows of logits, largest difference {worst:.1e}")
    assert rows > 100
    assert worst <= TOLERANCE


def test_a_state_one_place_off_would_be_seen(case, served, target):
    ours, (call, *_) = HEADS[case.kind](case, target), forwards(max(served.forwards, key=len))
    name = "arg0" if case.kind == "medusa" else "hidden_states"
    moved = call["read"] | {name: call["read"][name].roll(1, -1)}
    assert difference(ours.logits(moved), theirs(call)) > 100 * TOLERANCE


def unit(states):
    """Each row over its root mean square: what a norm makes of it first."""
    return states / states.square().mean(-1, keepdim=True).sqrt()


def test_vllm_feeds_the_states_that_our_target_has(case, served, target, prompts):
    """The layers' numbers, the norm, the place: for a prompt, what the module is given is what our proposer takes."""
    tokens, (first, *_) = prompts[0], served.forwards[0]
    layers = (1, 2, 3) if case.kind == "eagle3" else (target.config.layers,)
    ours = torch.cat(list(hidden(target, tokens, layers).values()), 1)
    if case.kind == "mtp":
        ours, given = unit(ours / target.weights.norm), unit(first["read"]["hidden_states"])
    elif case.kind == "medusa":
        ours, given = ours[-1:], first["read"]["arg0"]
    else:
        given = first["read"] if case.kind == "eagle3" else first["read"]["hidden_states"]
    assert given.shape == ours.shape
    torch.testing.assert_close(given, ours, rtol=0, atol=TOLERANCE * ours.abs().max().item())


def test_speculation_changes_no_token(served, plain):
    """MTP's folder holds the target in another form: its tokens are those of the target's own."""
    assert served.column("tokens") == plain.column("tokens")
    assert all(len(tokens) > GAMMA for tokens in plain.column("tokens"))
    for ours, theirs_ in zip(served.column("logprobs"), plain.column("logprobs"), strict=True):
        np.testing.assert_allclose(ours, theirs_, atol=TOLERANCE)


def steps(accepted):
    """[(first new token, drafted tokens kept)] of the steps that have room for a whole draft."""
    starts = 1 + np.concatenate([[0], np.cumsum(np.array(accepted[:-1], int) + 1)])
    return [(int(at), int(n)) for at, n in zip(starts, accepted, strict=True) if at + STEP <= TOKENS][:-1]


def test_both_engines_keep_the_same_drafts(case, served, plain, prompts):
    """vLLM's first token comes from the prompt, without a draft; ours gets it as part of the prompt."""
    engine, sampling = setting.arm(case), SamplingParams(max_new_tokens=TOKENS - 1)
    starts = [(*prompt, tokens[0]) for prompt, tokens in zip(prompts, plain.column("tokens"), strict=True)]
    asked = [Request(str(i), ids, sampling, stream_of(str(i))) for i, ids in enumerate(starts)]
    traces = {each.request.id: decode(each.trace) for each in engine.generate(asked)}
    ours = [accepted_by_step(traces[str(i)]).tolist() for i in range(len(asked))]
    counts, accepted = acceptance(traces.values()), served.column("accepted")
    lengths = counts.acceptance_length, 1 + sum(map(sum, accepted)) / sum(map(len, accepted))
    print(f"{case.kind}: acceptance length {lengths[0]:.2f} here, {lengths[1]:.2f} in vLLM, gamma {GAMMA}")
    assert [list(traces[str(i)].tokens) for i in range(len(asked))] == [each[1:] for each in plain.column("tokens")]
    for here, there in zip(ours, accepted, strict=True):
        assert steps(here) == steps(there)
    assert sum(len(steps(each)) for each in accepted) > 100
