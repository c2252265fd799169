"""The MTP proposer against its definition, computed anew for every proposal."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine import proposers
from engine.core.errors import ModelError
from engine.core.types import Protocol, QKind, SamplingParams
from engine.heads.formats.mimo import BEFORE_NORM
from engine.models.lean import LeanModel
from engine.sampling.transforms import transform
from tests.engine.build import Setup, requests

from .test_decoder import normed
from .test_heads_conformance import parts_with
from .tiny import HEADS, config_of, make_loop, mimo_head, tiny_target, whole_forward

CASES = ("mtp", "mtp-2-modules", "mtp-mimo")
SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=20, seed=2)


def turned(x, positions, config):
    half = config.head_dim // 2
    angles = positions[:, None] / 10000.0 ** (torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos()[:, None].to(x), angles.sin()[:, None].to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Module:
    """One module on whole sequences of (position, state, token) in plain torch."""

    def __init__(self, k, head, config):
        tensors = head.tensors
        self.tensors = {name.removeprefix(f"modules.{k}."): each for name, each in tensors.items()}
        self.config, self.target = config, tiny_target(config.vocabulary)

    def norm(self, name, x):
        return normed(x, self.tensors[name], self.config.eps)

    def linear(self, name, x):
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def states(self, rows):
        positions = torch.tensor([position for position, _, _ in rows])
        embedded = self.target.weights.embedding[[token for _, _, token in rows]] * (positions > 0)[:, None]
        state = torch.stack([state for _, state, _ in rows])
        both = torch.cat([self.norm("embedding_norm", embedded), self.norm("hidden_norm", state)], 1)
        return self.norm("norm", self.layer(F.linear(both, self.tensors["project"]), positions))

    def layer(self, x, positions):
        config, at = self.config, "layers.0."
        rows = self.norm(f"{at}input_layernorm.weight", x)
        q, k, v = (self.linear(f"{at}self_attn.{n}_proj", rows).view(len(x), -1, config.head_dim) for n in "qkv")
        q, k = turned(q, positions, config), turned(k, positions, config)
        k, v = (each.repeat_interleave(config.heads // config.kv_heads, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(config.head_dim)
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + self.linear(f"{at}self_attn.o_proj", seen)
        rows = self.norm(f"{at}post_attention_layernorm.weight", x)
        gate, up = (self.linear(f"{at}mlp.{name}_proj", rows) for name in ("gate", "up"))
        return x + self.linear(f"{at}mlp.down_proj", F.silu(gate) * up)


def unweighted(target):
    """The target whose final norm has weights of 1: its last states are those before the norm, but for a factor."""
    return LeanModel(target.config, replace(target.weights, norm=torch.ones_like(target.weights.norm)))


def defined(history, drafted, case):
    """Logits of each drafted token, from the sequence alone."""
    target, tokens, head = tiny_target(), [*history, *drafted], HEADS[case][1]()
    modules = head.settings["modules"]
    made = [Module(k, head, config_of()) for k in range(modules)]
    source = unweighted(target) if head.settings.get(BEFORE_NORM) else target
    states = dict(enumerate(whole_forward(source, history[:-1])[1]))
    read = [[] for _ in made]
    for step in range(len(drafted)):
        k = step % modules
        read[k] += [(position, state, tokens[position + 1]) for position, state in states.items()]
        outputs = made[k].states(read[k])
        yield F.linear(outputs[-1], made[k].tensors.get("head", target.weights.head))
        found = {position + 1: out for (position, _, _), out in zip(read[k], outputs, strict=True)}
        states = found if step + 1 < modules else dict([max(found.items())])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_every_q_is_what_the_modules_say_of_the_prefix(case, protocol):
    """After rejections, short drafts, cuts and reuse of rows."""
    setup = Setup(case, protocol, gamma=5, rows=2)
    loop, checked = make_loop(setup), 0
    propose = loop._proposer.propose

    def compared(contexts):
        nonlocal checked
        contexts = [replace(each, budget=min(each.budget, (len(each.history) * 7) % 6)) for each in contexts]
        found = propose(contexts)
        for context, proposal in zip(contexts, found, strict=True):
            history = list(context.history)
            for i, logits in enumerate(defined(history, proposal.tree.tokens, case)):
                row = transform(logits.numpy(), [*history, *proposal.tree.tokens[:i]], 1, context.request.sampling, ())
                assert proposal.q_kind is QKind.FULL
                np.testing.assert_allclose(proposal.q[i], row.p, atol=1e-9)
                checked += 1
        return found

    loop._proposer.propose = compared
    list(loop.run(requests(4, SAMPLED)))
    assert checked > 60


def test_a_prompt_of_one_token_is_drafted_after_from_the_second_step_on():
    setup = Setup("mtp", Protocol.GUMBEL, gamma=3)
    (generation,) = make_loop(setup).run([replace(requests(1, SAMPLED)[0], prompt=(3,))])
    (plain,) = make_loop(replace(setup, proposer=None)).run([replace(requests(1, SAMPLED)[0], prompt=(3,))])
    assert generation.tokens == plain.tokens


def test_states_that_a_norm_of_weight_0_has_erased_are_not_guessed():
    target = tiny_target()
    weights = replace(target.weights, norm=target.weights.norm.index_fill(0, torch.tensor([3]), 0.0))
    with pytest.raises(ModelError, match="mimo_mtp head: it reads states from before the target's final norm"):
        proposers.build("mtp", parts_with(mimo_head(), LeanModel(target.config, weights)))
