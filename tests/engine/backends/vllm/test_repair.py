from types import SimpleNamespace

import pytest
import torch

from engine.backends.vllm.repair import expanded, repair


def test_every_drafted_row_has_its_requests_value():
    found = expanded(torch.tensor([0.0, 0.7, 2.0]), torch.tensor([2, 2, 5]), 5, replace_from=0, replace_to=1)
    assert found.tolist() == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0])


def test_top_k_over_no_row_is_left_out():
    module = SimpleNamespace(apply_top_k_top_p=lambda logits, k, p: logits - k.max(), expand_batch_to_tokens=expanded)
    repair(module)
    nothing = torch.empty(0, 4)
    assert module.apply_top_k_top_p(nothing, torch.empty(0), None) is nothing
    assert module.apply_top_k_top_p(torch.ones(1, 1), torch.ones(1), None).item() == 0


def test_a_version_without_the_names_is_refused():
    with pytest.raises(AttributeError):
        repair(SimpleNamespace(apply_top_k_top_p=len))
