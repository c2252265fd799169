"""EAGLE's drafts against their definition: which pairs a head reads, and which nodes a dynamic tree keeps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.core.errors import InvalidRequest, ModelError
from engine.core.trees import path_tokens
from engine.core.types import DraftRule, Protocol, QKind, SamplingParams
from engine.heads.formats.eagle import forms
from engine.models.interface import WantedOutputs, chain_placement, to_numpy
from engine.models.lean_weights import read_config
from engine.proposers.trained.eagle import DynamicTreeSize, _Growing
from engine.proposers.trained.feature_head import FeatureReader, feature_head
from engine.record.trace import decode, steps_of
from engine.sampling.transforms import transform
from tests.engine.build import Setup, requests
from tests.support.head_cases import parts_with, ragged, started
from tests.support.plain_decoder import normed, straightforward

from . import tiny

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, max_new_tokens=24, seed=3)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def target_states(history, layers):
    """[T, H] each of a whole sequence, in a cache of its own."""
    target = tiny.tiny_target()
    cache = target.new_cache(1, len(history))
    forward = target.forward(cache, chain_placement([list(history)], [0], cache.trash), WantedOutputs(False, layers))
    return [forward.hidden[layer][0] for layer in layers]


def q_logits(head, history, drafted):
    """[V] after `drafted`, by the definition: true states before the newest committed token, then the head's own."""
    tensors, target = head.tensors, tiny.tiny_target()
    config = read_config(head.config, "test")
    embedding = target.weights.embedding
    if head.family == "eagle":
        (states,) = target_states(history, (2,))
        enter = lambda pair: F.linear(pair, tensors["fc.weight"], tensors["fc.bias"])  # noqa: E731
        shape = forms(1)
    else:
        states = F.linear(torch.cat(target_states(history, (0, 1, 2)), 1), tensors["fc.weight"])
        enter, shape = (lambda pair: pair), head.settings["forms"]
    states = list(states[:-1])
    for count in range(len(drafted) + 1):
        tokens = [*history[1:], *drafted[:count]]
        pairs = torch.cat([embedding[tokens], torch.stack(states)], 1)
        outputs = straightforward(config, tensors, shape, enter(pairs))
        states.append(outputs[-1])
    if head.family == "eagle":
        return F.linear(states[-1], target.weights.head)
    known = F.linear(normed(states[-1], tensors["norm.weight"], config.eps), tensors["lm_head.weight"])
    ids = tensors.get("target_ids", torch.arange(8))
    return torch.full((8,), -torch.inf, dtype=torch.float64).index_copy(0, ids, known)


@pytest.mark.medium
@pytest.mark.parametrize("case", ["eagle", "eagle-tree", "eagle3"])
def test_every_q_is_what_the_definition_says(case):
    protocol = Protocol.TREE if case == "eagle-tree" else Protocol.CHAIN
    loop = tiny.make_loop(Setup(case, protocol, rows=3, gamma=4))
    head, checked = tiny.HEADS[case][1](), 0
    for generation in loop.run(ragged(6, SAMPLED)):
        trace, prompt = decode(generation.trace), generation.request.prompt
        history = [*prompt, *trace.tokens]
        for step in steps_of(trace):
            tokens, parents = trace.node_token[step.nodes].tolist(), trace.node_parent[step.nodes].tolist()
            done = history[: step.position]
            for x in range(step.examined.start, step.examined.stop):
                node = int(trace.examined_node[x])
                path, at = [], parents[node]
                while at != -1:
                    path, at = [tokens[at], *path], parents[at]
                row = transform(
                    to_numpy(q_logits(head, done, path)), [*done, *path], len(prompt), generation.request.sampling, ()
                )
                p = row.p.copy()
                for sibling in range(node):
                    if parents[sibling] == parents[node]:
                        p[tokens[sibling]] = 0.0
                np.testing.assert_allclose(trace.q_rows[x], p / p.sum(), atol=1e-9)
                checked += 1
    assert checked > 40


@pytest.mark.medium
@pytest.mark.parametrize("case", ["eagle2", "eagle2-eagle3"])
@pytest.mark.parametrize("budget", [1, 4, 9])
def test_a_dynamic_tree_keeps_the_likeliest_nodes_of_all_it_looked_at(case, budget):
    prompt, reach = (0, 3, 1, 5), DynamicTreeSize(top_k=3, depth=3)
    head = tiny.HEADS[case][1]()
    tree = started(case, DraftRule.INDEPENDENT, prompt, budget, replace(SAMPLED, repetition_penalty=1.0)).tree
    got = [path_tokens(tree, node) for node in range(len(tree))]

    def worth(path):
        rows = [torch.log_softmax(q_logits(head, prompt, path[:i]), -1) for i in range(len(path))]
        return sum(float(row[token]) for row, token in zip(rows, path, strict=True))

    seen, level = {}, [()]
    for _ in range(reach.depth):
        below = [(*path, token) for path in level for token in best_tokens(head, prompt, path, reach.top_k)]
        seen |= {path: worth(path) for path in below}
        level = sorted(below, key=seen.get, reverse=True)[: reach.top_k]
    assert set(got) == set(sorted(seen, key=seen.get, reverse=True)[:budget])
    assert all(path[:-1] in ((), *got[:i]) for i, path in enumerate(got))


def best_tokens(head, prompt, path, count):
    return q_logits(head, prompt, path).topk(count).indices.tolist()


def test_a_dynamic_tree_is_no_deeper_than_can_be_emitted():
    loop = tiny.make_loop(Setup("eagle2", Protocol.TREE, rows=2, gamma=9))
    (request,) = requests(1, replace(SAMPLED, max_new_tokens=2))
    trace = decode(next(iter(loop.run([request]))).trace)
    assert set(trace.node_parent[next(iter(steps_of(trace))).nodes].tolist()) == {-1}


def test_equally_likely_nodes_keep_their_parents():
    row = _Growing(None)
    sure = np.array([0.0, -np.inf])
    row.expand(-1, sure, 2)
    row.expand(0, sure, 2)
    assert len(row.candidates) == 2  # a token of probability 0 is no candidate
    assert row.best(range(2), 1) == [0]


def test_a_tree_of_q_has_distinct_siblings_and_dynamic_trees_none_of_q():
    drawn = started("eagle-tree", DraftRule.INDEPENDENT, (0, 3, 1, 5), 10, SAMPLED)
    assert drawn.q_kind is QKind.FULL
    pairs = list(zip(drawn.tree.parents, drawn.tree.tokens, strict=True))
    assert len(set(pairs)) == len(pairs) > 6
    assert started("eagle3-dynamic", DraftRule.INDEPENDENT, (0, 3, 1, 5), 6, SAMPLED).q_kind is QKind.ONE_HOT


def test_a_token_that_the_head_does_not_know_has_no_q():
    head = tiny.eagle3_head(known=6)
    unknown = sorted(set(range(8)) - set(head.tensors["target_ids"].tolist()))
    q = started("eagle3", DraftRule.INDEPENDENT, (0, 3, 1, 5), 4, SAMPLED).q
    assert np.all(q[:, unknown] == 0.0)
    np.testing.assert_allclose(q.sum(axis=1), 1.0)


def test_a_head_of_the_other_family_is_refused():
    for kind, other in itertools.permutations(("eagle", "eagle3"), 2):
        with pytest.raises(InvalidRequest, match=f"proposer {kind} cannot draft with a {other} head"):
            feature_head(kind, parts_with(tiny.HEADS[other][1]()), (kind,))


def test_hidden_states_that_the_target_lacks_are_refused():
    head = tiny.eagle3_head()
    for layers, words in (((0, 1, 3), "hidden state 3, the target's are 0 to 2"), ((0, 1), "reads 48 numbers")):
        settings = {**head.settings, "layers": layers}
        with pytest.raises(ModelError, match=words):
            feature_head("eagle3", parts_with(replace(head, settings=settings)), ("eagle3",))
    published = {**head.settings, "layers": None}  # 2, 1 and -1 of a target with two layers
    with pytest.raises(ModelError, match="hidden state -1"):
        feature_head("eagle3", parts_with(replace(head, settings=published)), ("eagle3",))


def test_a_normed_output_feeds_on_itself_normed():
    head = tiny.eagle3_head()
    made = feature_head(
        "eagle3", parts_with(replace(head, settings={**head.settings, "norm_output": True})), ("eagle3",)
    )
    rows = torch.randn(3, 16, dtype=torch.float64)
    torch.testing.assert_close(made.settle(rows), normed(rows, head.tensors["norm.weight"], 1e-5))


def test_a_row_that_outgrew_the_cache_has_no_room():
    head = feature_head("eagle", parts_with(tiny.eagle_head()), ("eagle",))
    reader = FeatureReader(head, 1, 3)
    context = type("Context", (), {"row": 0, "history": [1, 2, 3, 4, 5]})
    assert reader.room(context) == 0
