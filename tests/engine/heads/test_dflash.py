"""DFlash and DDTree: every proposal against a drafter that reads the whole sequence anew."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.core.trees import path_tokens, require_valid
from engine.core.types import Protocol, QKind, SamplingParams
from engine.heads.dflash import BlockDecoder
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.lean_weights import read_config
from engine.proposers.trained.ddtree import best_prefixes
from engine.proposers.trained.dflash import whole
from engine.sampling.transforms import transform
from tests.engine.build import Setup, requests

from .tiny import dflash_head, make_loop, tiny_target

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=24, seed=2)


def block_logits(history):
    """[block - 1, V] after a committed sequence, by a drafter with an empty cache."""
    head, target = dflash_head(), tiny_target()
    layers, size = head.settings["states"], head.settings["block"]
    cache = target.new_cache(1, len(history))
    forward = target.forward(cache, chain_placement([list(history)], [0], cache.trash), WantedOutputs(False, layers))
    states = torch.cat([forward.hidden[layer][0, :-1] for layer in layers], 1)
    decoder = BlockDecoder(read_config(head.config, "here"), head.tensors, torch.float64)
    cache, anchor = decoder.new_cache(1, 128), len(history) - 1
    if anchor:
        decoder.read(cache, chain_placement([[0] * anchor], [0], cache.trash), states)
    block = [history[-1], *[head.settings["mask"]] * (size - 1)]
    placement = whole(chain_placement([block], [anchor], cache.trash), [anchor], size)
    out = decoder.forward(cache, placement, F.embedding(torch.tensor(block), target.weights.embedding))
    return F.linear(out[1:], target.weights.head)


def spied(case, protocol, gamma):
    """Every context and proposal of a run over four requests in two rows."""
    loop, seen = make_loop(Setup(case, protocol, gamma=gamma, rows=2)), []
    propose = loop._proposer.propose

    def kept(contexts):
        found = propose(contexts)
        seen.extend((each, list(each.history), proposal) for each, proposal in zip(contexts, found, strict=True))
        return found

    loop._proposer.propose = kept
    list(loop.run(requests(4, SAMPLED)))
    return seen


@pytest.mark.medium
@pytest.mark.parametrize("gamma", [3, 9])
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_every_q_is_what_the_drafter_says_of_the_committed_tokens(protocol, gamma):
    checked = 0
    for context, history, proposal in spied("dflash", protocol, gamma):
        assert len(proposal.tree) == min(context.budget, 5)
        for i, logits in enumerate(block_logits(history)[: len(proposal.tree)]):
            q = transform(logits.numpy(), [*history, *proposal.tree.tokens[:i]], 1, context.request.sampling, ()).p
            assert proposal.q_kind is QKind.FULL
            np.testing.assert_allclose(proposal.q[i], q, atol=1e-9)
            checked += 1
    assert checked > 60


@pytest.mark.medium
def test_a_tree_holds_the_best_prefixes_of_the_marginals():
    checked = 0
    for context, history, proposal in spied("ddtree", Protocol.TREE, 12):
        marginals = (block_logits(history) / 0.9).softmax(-1).numpy()[: min(context.depth, 5)]
        wanted = best_by_force(marginals[:3], context.budget)
        got = [path_tokens(proposal.tree, node) for node in range(len(proposal.tree))]
        shallow = [path for path in got if len(path) <= 3]
        assert shallow == wanted[: len(shallow)]
        checked += len(shallow)
    assert checked > 60


def best_by_force(marginals, budget):
    paths = []
    for depth in range(1, len(marginals) + 1):
        paths += list(itertools.product(range(marginals.shape[1]), repeat=depth))
    score = {path: float(np.prod([marginals[i, token] for i, token in enumerate(path)])) for path in paths}
    return sorted(paths, key=lambda path: -score[path])[:budget]


def test_best_prefixes_are_prefix_closed_sorted_and_as_many_as_asked_for():
    rng = np.random.default_rng(5)
    for budget in (1, 4, 30):
        marginals = rng.dirichlet(np.full(6, 0.4), size=3)
        tree = best_prefixes(marginals, budget)
        require_valid(tree)
        assert len(tree) == budget
        paths = [path_tokens(tree, node) for node in range(len(tree))]
        assert paths == best_by_force(marginals, budget)


def test_tokens_without_probability_are_left_out():
    tree = best_prefixes(np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]), 9)
    assert sorted(path_tokens(tree, node) for node in range(len(tree))) == [(0,), (0, 1), (1,), (1, 1)]
