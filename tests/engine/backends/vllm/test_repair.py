from types import SimpleNamespace

import pytest
import torch

from engine.backends.vllm.patches import (
    expanded,
    repair_base_rows,
    repair_embedding,
    repair_lengths,
    repair_rows,
    repair_seeds,
)


def test_every_drafted_row_has_its_requests_value():
    found = expanded(torch.tensor([0.0, 0.7, 2.0]), torch.tensor([2, 2, 5]), 5, replace_from=0, replace_to=1)
    assert found.tolist() == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0])


def test_top_k_over_no_row_is_left_out():
    module = SimpleNamespace(apply_top_k_top_p=lambda logits, k, p: logits - k.max(), expand_batch_to_tokens=expanded)
    repair_rows(module)
    nothing = torch.empty(0, 4)
    assert module.apply_top_k_top_p(nothing, torch.empty(0), None) is nothing
    assert module.apply_top_k_top_p(torch.ones(1, 1), torch.ones(1), None).item() == 0


def test_a_version_without_the_names_is_refused():
    with pytest.raises(AttributeError):
        repair_rows(SimpleNamespace(apply_top_k_top_p=len))


class Lengths:
    """As vLLM's: masks by the length before the draft."""

    def __init__(self):
        # two tokens of at least 4, 6 and 2; tokens 0 and 2 end an answer
        self.min_toks = {row: (least, [7, 7], {0, 2}, False) for row, least in ((0, 4), (2, 6), (3, 2))}

    def apply(self, logits):
        for row, (least, answer, ends, _) in self.min_toks.items():
            if len(answer) < least:
                logits[row, list(ends)] = float("-inf")
        return logits


class Sampler:
    def __init__(self, processor):
        self.processor = processor

    def forward(self, metadata, draft_probs, logits, sampling_metadata):
        if draft_probs == "broken":
            raise RuntimeError(draft_probs)
        return self.processor.apply(logits)


def forbidden(logits):
    return {row for row in range(len(logits)) if logits[row, 0] == logits[row, 2] == float("-inf")}


def test_the_row_behind_a_draft_is_masked_by_its_own_place():
    sampler, lengths = type("Copy", (Sampler,), {}), type("Copy", (Lengths,), {})
    processor = lengths()
    broken = sampler(processor)
    batch = (SimpleNamespace(num_draft_tokens=[3, 3, 3, 0]), None)
    rest = SimpleNamespace(logitsprocs=SimpleNamespace(all=[processor, object()]))
    assert forbidden(broken.forward(*batch, torch.zeros(4, 5), rest)) == {0, 2}
    repair_lengths(sampler, lengths)
    assert forbidden(broken.forward(*batch, torch.zeros(4, 5), rest)) == {2}, "2 and 3 drafted are 5: 4 are enough"
    assert forbidden(processor.apply(torch.zeros(4, 5))) == {0, 2}, "without a draft as before"
    with pytest.raises(RuntimeError):
        broken.forward(batch[0], "broken", torch.zeros(4, 5), rest)
    assert forbidden(processor.apply(torch.zeros(4, 5))) == {0, 2}, "and after a failure"


class Runner:
    """As vLLM's on a CPU: every row draws, and what a discarded row drew is taken back by an offset."""

    def __init__(self, discarded):
        self.discard_request_mask = SimpleNamespace(np=discarded)
        generators = {row: torch.Generator().manual_seed(row) for row in range(len(discarded))}
        self.input_batch = SimpleNamespace(generators=generators)

    def _sample(self, logits):
        return [torch.rand(1, generator=each).item() for each in self.input_batch.generators.values()]

    def _bookkeeping_sync(self, tokens):
        for row, gone in enumerate(self.discard_request_mask.np):
            generator = self.input_batch.generators.get(row)
            if gone and generator is not None:
                generator.set_offset(generator.get_offset() - 4)
        return tokens


def test_a_seeded_request_whose_prompt_is_read_in_parts_draws_as_if_it_were_not():
    with pytest.raises(RuntimeError, match="offset"):
        Runner([True])._bookkeeping_sync([])
    repaired = type("Copy", (Runner,), {})
    repair_seeds(repaired)
    runner = repaired([True, False])
    first = runner._sample(None)
    assert runner._bookkeeping_sync(first) == first
    assert len(runner.input_batch.generators) == 2
    runner.discard_request_mask.np = [False, False]
    second = runner._sample(None)
    assert second[0] == first[0], "the first number of the answer"
    assert second[1] != first[1]


def shrink(inputs, weights, output, indices, scaling=1.0):
    """As vLLM's on a CPU: index -1 reads the last adapter's weights."""
    output[:] = scaling * torch.einsum("bi,boi->bo", inputs, weights[indices])


def expand(inputs, weights, output, indices, add_inputs=True):
    output[:] = torch.einsum("bi,boi->bo", inputs, weights[indices]) + (output if add_inputs else 0)


def operations():
    return SimpleNamespace(bgmv_shrink=shrink, bgmv_expand=expand, bgmv_expand_slice=expand)


def change(module):
    """What two adapters add to three rows; the last row has none."""
    rows, indices = torch.ones(3, 4), torch.tensor([0, 1, -1])
    a, b = torch.arange(1.0, 25).view(2, 3, 4), torch.arange(1.0, 31).view(2, 5, 3)
    between, changed = torch.empty(3, 3), torch.zeros(3, 5)
    module.bgmv_shrink(rows, a, between, indices, 0.5)
    module.bgmv_expand(between, b, changed, indices, add_inputs=True)
    return changed


def test_a_row_without_an_adapter_is_not_changed():
    stock, repaired = operations(), operations()
    repair_base_rows(repaired)
    assert torch.equal(change(stock)[2], change(stock)[1]), "the last adapter's"
    assert change(repaired)[2].tolist() == [0.0] * 5
    assert torch.equal(change(repaired)[:2], change(stock)[:2])


def test_operations_with_other_names_are_refused():
    with pytest.raises(AttributeError):
        repair_base_rows(SimpleNamespace(bgmv_shrink=shrink))


def test_a_head_has_the_embedding_without_adapters():
    wrapped = SimpleNamespace(base_layer="embedding")
    head = SimpleNamespace(model=SimpleNamespace(model=SimpleNamespace(embed_tokens=wrapped)))
    repair_embedding(head)
    repair_embedding(head)
    assert head.model.model.embed_tokens == "embedding"


def test_a_drafter_without_a_shared_embedding_is_left_alone():
    repair_embedding(None)
    lone = SimpleNamespace(model=SimpleNamespace(model=SimpleNamespace()))
    repair_embedding(lone)
    assert vars(lone.model.model) == {}
