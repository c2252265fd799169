"""The MTP proposer against its definition, computed anew for every proposal."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine import proposers
from engine.core.errors import ModelError
from engine.core.types import Protocol, QKind, SamplingParams
from engine.heads.formats.mtp import BEFORE_NORM
from engine.models.decoder.lean import LeanModel
from engine.sampling.transforms import transform
from tests.engine.build import Setup, requests
from tests.support.head_cases import parts_with
from tests.support.mtp_modules import Module, unweighted
from tests.support.tiers import fast_first

from .tiny import HEADS, config_of, make_loop, mimo_head, tiny_target, whole_forward

CASES = ("mtp", "mtp-2-modules", "mtp-mimo")
SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=20, seed=2)


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


@pytest.mark.medium
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("protocol", fast_first([Protocol.CHAIN, Protocol.GUMBEL]))
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
