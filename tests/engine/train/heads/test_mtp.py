"""The trainer of MTP modules: what is trained is what drafts, and what is written can be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from engine.heads.decoder import MtpModule
from engine.heads.formats.mtp import deepseek_slots
from engine.heads.loading import load_head
from engine.models.interface import chain_placement
from engine.train.heads.head_layer import HeadStage
from engine.train.heads.mtp import MtpHead, loss_of, train_mtp, unroll
from engine.train.recipe import TrainRecipe, UnrolledRecipe
from tests.support.lean_tensors import from_tensors

PLAN = UnrolledRecipe(TrainRecipe(steps=60, learning_rate=2e-2, rows=4, window=24, warmup=2), ffn=20)


@pytest.mark.slow
def test_training_learns_and_its_folder_is_read(tmp_path, teacher, stream):
    before = MtpHead(teacher, PLAN)
    train_mtp(HeadStage(teacher, stream, tmp_path / "mtp", lambda line: None), PLAN)
    loaded = load_head(str(tmp_path / "mtp"))
    assert loaded.head.settings == {"modules": 1, "hidden": 16, "vocabulary": 32}
    trained = MtpHead(teacher, PLAN)
    trained.load_state_dict(_own_names(load_file(tmp_path / "mtp" / "model.safetensors")))
    windows = torch.from_numpy(stream.held_out["held"][:75].astype(np.int64).reshape(3, 25))
    with torch.no_grad():
        assert loss_of(trained, teacher, windows, PLAN) < 0.9 * loss_of(before, teacher, windows, PLAN)


def _own_names(tensors):
    """DeepSeek's names for layer 2 as the module's own."""
    found = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.layers.2.").removeprefix("shared_head.")
        outer = name.startswith(("enorm", "hnorm", "eh_proj", "norm"))
        found[name if outer else f"layer.{name}"] = tensor.float()
    return found


def test_an_unrolled_pass_is_the_step_of_a_draft(teacher):
    """At every row of every pass the trainer computes what the drafting module does."""
    head = MtpHead(teacher, PLAN)
    for parameter in head.parameters():  # norms start as ones, which would hide mistakes
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    tokens = torch.randint(0, 32, (1, 13), generator=torch.Generator().manual_seed(2))
    passes = [each.draft[0] for each in unroll(head, teacher, tokens, 3)]
    config = replace(teacher.config, ffn=PLAN.ffn)
    published = head.published(teacher.config.layers)
    slots = [slot for slot in deepseek_slots(config, 1) if not slot.optional]
    tensors = {slot.name.removeprefix("modules.0."): published[slot.published] for slot in slots}
    target = from_tensors(teacher.document, teacher.model.state_dict(), torch.float32)
    module, states = MtpModule(config, tensors, target.weights), teacher.lesson(tokens).hidden[2][0]
    ids = tokens[0].tolist()
    for row in range(9):
        cache = module.new_cache(1, 16)
        read = module.forward(cache, chain_placement([ids[1 : row + 2]], [0], cache.trash), states[: row + 1])[-1:]
        for step in range(3):
            wanted = F.linear(read, teacher.head)
            torch.testing.assert_close(module.logits(read), wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(passes[step][row : row + 1], wanted, rtol=1e-3, atol=1e-3)
            placement = chain_placement([[ids[row + step + 2]]], [row + step + 1], cache.trash)
            read = module.forward(cache, placement, read)
