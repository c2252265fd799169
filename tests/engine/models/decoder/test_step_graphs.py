"""Recorded steps, with a recorder that runs the work again where a GPU would replay its kernels."""

from dataclasses import replace

import pytest
import torch

from engine.core.types import Tree
from engine.models import numerics
from engine.models.decoder import step_graphs
from engine.models.decoder.lean import LeanModel
from engine.models.decoder.step_graphs import Recorded, StepBuffer, StepGraphs
from engine.models.interface import Placed, WantedOutputs, chain_placement, completed, place
from engine.models.lean_weights import read_config
from engine.models.numerics import constant_rows
from engine.models.probe.model_parts import difference, parts_of
from engine.models.probe.probe import probe
from tests.support.lean_tensors import build_weights

CPU = torch.device("cpu")
TREE = Tree((7, 8, 9, 11), (-1, -1, 0, 2))
WANTED = WantedOutputs(hidden=(0, 3))


class Again:
    """Records by running the work, replays by running it again into the same tensors."""

    def __init__(self):
        self.recorded = 0

    def __call__(self, work):
        self.recorded += 1
        answer = work()

        def replay():
            found = work()
            answer.logits.copy_(found.logits)
            for layer, states in answer.hidden.items():
                states.copy_(found.hidden[layer])

        return Recorded(replay, answer)


def made(network, mode, graphs=None):
    config = read_config(network.config.to_dict(), "config.json")
    weights = build_weights(config, network.state_dict(), torch.float32)
    return LeanModel(config, weights, numerics=numerics.load(mode), graphs=graphs)


def steps(trash):
    """Steps after prompts of 9, 30 and 5 tokens: alone, ragged, trees, a row of padding, over the span's border."""
    yield chain_placement([[4, 5, 6]], [9], trash)
    yield chain_placement([[3]], [12], trash)
    yield chain_placement([[3], [5, 9, 2, 7], []], [13, 30, 0], trash)
    yield place([Placed(3, 15, TREE), None, Placed(2, 6, Tree())], trash)
    yield chain_placement([[8, 9], [5], [3, 4, 6, 7, 9]], [15, 34, 6], trash)
    yield chain_placement([[4, 5, 6, 8, 1, 2, 3, 4, 5, 6, 7]], [17], trash)
    yield chain_placement([[3]], [28], trash)


def outputs(model):
    """Logits and hidden states of every real token of every step, and the final cache."""
    with torch.inference_mode():
        cache = model.new_cache(3, 70)
        for row, length in enumerate((9, 30, 5)):
            prompt = [(5 * i + row) % 70 + 3 for i in range(length)]
            model.forward(cache, chain_placement([prompt], [0], cache.trash, first_row=row), WantedOutputs(False))
        found = []
        for placement in steps(cache.trash):
            answer = model.forward(cache, placement, WANTED)
            for part in (answer.logits, *answer.hidden.values()):
                found += [part[b, :count].clone() for b, count in enumerate(placement.lengths)]
        return found, (cache.all_keys[..., :70, :].clone(), cache.all_values[..., :70, :].clone())


@pytest.mark.medium
@pytest.mark.parametrize("mode", sorted(numerics.REGISTRY))
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_recorded_steps_give_what_unrecorded_ones_give(kind, mode, make_network):
    network, again = make_network(kind), Again()
    plain, kept = outputs(made(network, mode))
    found, written = outputs(made(network, mode, StepGraphs(CPU, again)))
    assert again.recorded > 3
    for ours, theirs in zip((*found, *written), (*plain, *kept), strict=True):
        if mode == "fast":
            torch.testing.assert_close(ours, theirs)
        else:
            assert not len(ours) or difference(ours, theirs) is None


def test_a_shape_is_recorded_once_per_cache(make_network):
    again = Again()
    model = made(make_network("llama"), "fast", StepGraphs(CPU, again))
    with torch.inference_mode():
        for _ in range(2):
            cache = model.new_cache(2, 60)
            for position in range(20):
                model.forward(cache, chain_placement([[3], [4]], [position, 2 * position], cache.trash), WANTED)
    assert again.recorded == 2


def test_further_shapes_run_unrecorded(make_network, monkeypatch):
    monkeypatch.setattr(step_graphs, "MOST", 2)
    again = Again()
    network = make_network("llama")
    plain, _ = outputs(made(network, "tiled"))
    found, _ = outputs(made(network, "tiled", StepGraphs(CPU, again)))
    assert again.recorded == 2
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain, strict=True))


def test_prompts_and_wide_steps_are_not_recorded(make_network):
    again = Again()
    model = made(make_network("llama"), "fast", StepGraphs(CPU, again))
    cache = model.new_cache(1, 100)
    prompt = chain_placement([[3] * 10], [0], cache.trash)
    model.forward(cache, prompt, WantedOutputs(logits=False))
    model.forward(cache, chain_placement([[3] * 65], [10], cache.trash), WantedOutputs())
    assert again.recorded == 0


def test_fillers_stand_beside_the_last_token_and_are_thrown_away():
    placement = completed(chain_placement([[3, 4], [5], []], [7, 9, 0], 60), 3, 40, 60)
    assert placement.tokens.tolist() == [[3, 4, 0], [5, 0, 0], [0, 0, 0]]
    assert placement.positions.tolist() == [[7, 8, 8], [9, 9, 9], [0, 0, 0]]
    assert placement.slots.tolist() == [[7, 8, 60], [9, 60, 60], [60, 60, 60]]
    assert (placement.lengths, placement.real, placement.span) == ((3, 3, 3), (2, 1, 0), 40)
    tree = completed(place([Placed(3, 15, TREE), None], 60), 6, 40, 60)
    assert tree.branches.shape == (2, 6, 40)
    assert tree.branches[0, 5].tolist() == tree.branches[1, 0].tolist() == [True] + [False] * 39
    assert tree.branches[0, 4, 15:].tolist() == [True, False, True, True] + [False] * 21


def test_a_buffer_holds_tensors_of_every_kind():
    given = [torch.arange(5), torch.tensor(True), torch.ones(3, 1).expand(3, 4), torch.zeros(0), torch.tensor([0.5])]
    buffer = StepBuffer(given, CPU)
    for tensors in (given, [each.flip(0) if each.dim() else ~each for each in given]):
        buffer.load(tensors)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(buffer.there, tensors, strict=True))


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["fixed", "tiled"])
def test_constant_shapes_keep_the_numbers_and_the_rows_apart(mode, make_network, monkeypatch):
    model = made(make_network("llama"), mode)
    plain, _ = outputs(model)
    shapes = []
    product = torch.nn.functional.linear
    monkeypatch.setattr(constant_rows, "needed", lambda device: True)
    monkeypatch.setattr("torch.nn.functional.linear", lambda x, *rest: shapes.append(len(x)) or product(x, *rest))
    constant = made(make_network("llama"), mode)
    found, _ = outputs(constant)
    assert set(shapes) == {constant_rows.ROWS}
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    # attention's blocks of 64 queries are for a GPU's library; the CPU's is promised nothing of that shape
    report = probe(parts_of(constant.config, constant.weights), numerics.load(mode))
    assert {each.name for each in report.results if each.held} >= {"products", "norm", "gate", "rotate"}


def test_a_filler_in_a_real_column_would_be_noticed(make_network, monkeypatch):
    """The comparison with unrecorded steps fails if a filler overwrites a committed column."""
    network = make_network("llama")
    plain, _ = outputs(made(network, "tiled"))
    whole = step_graphs.completed

    def careless(placement, width, span, trash):
        done = whole(placement, width, span, trash)
        return replace(done, slots=torch.where(done.slots == trash, 2, done.slots))

    monkeypatch.setattr(step_graphs, "completed", careless)
    found, _ = outputs(made(network, "tiled", StepGraphs(CPU, Again())))
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain, strict=True))
