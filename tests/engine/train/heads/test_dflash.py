"""The trainer of block drafters: what is trained is what drafts, and what is written can be read."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.heads.dflash import BlockDecoder
from engine.heads.loading import load_head
from engine.models.interface import chain_placement
from engine.models.lean_weights import read_config
from engine.proposers.trained.dflash import whole
from engine.train.heads.dflash import (
    BlockPlacement,
    DFlashHead,
    compare,
    fitting_layers,
    loss_of,
    mask_token,
    train_dflash,
)
from engine.train.heads.head_layer import HeadStage
from engine.train.recipe import DFlashRecipe, TrainRecipe

PLAN = DFlashRecipe(
    TrainRecipe(steps=60, learning_rate=2e-2, rows=4, window=24, warmup=2),
    layers=2,
    ffn=20,
    target_layers=(0, 1),
    block=4,
    anchors=5,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, teacher, stream):
    folder = tmp_path_factory.mktemp("heads") / "dflash"
    train_dflash(HeadStage(teacher, stream, folder, lambda line: None), PLAN)
    return load_head(str(folder)).head


def head_of(teacher, tensors):
    head = DFlashHead(teacher, PLAN)
    named = {name if "." in name else f"{name}.weight": tensor.float() for name, tensor in tensors.items()}
    head.load_state_dict(named)
    return head


def test_training_learns_and_its_folder_is_read(trained, teacher, stream):
    assert trained.settings["states"] == (1, 2)
    assert trained.settings["block"] == 4
    windows = torch.from_numpy(stream.held_out["held"][:75].astype(np.int64).reshape(3, 25))
    with torch.no_grad():
        before = loss_of(DFlashHead(teacher, PLAN), teacher, windows, PLAN)
        assert loss_of(head_of(teacher, trained.tensors), teacher, windows, PLAN) < 0.9 * before


def test_a_block_in_a_window_is_a_block_of_a_draft(trained, teacher):
    tokens = torch.randint(0, 32, (1, 20), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        said = compare(head_of(teacher, trained.tensors), teacher, tokens, PLAN).draft[0]
    decoder = BlockDecoder(read_config(trained.config, "here"), trained.tensors, torch.float32)
    states = torch.cat([teacher.lesson(tokens).hidden[layer] for layer in (1, 2)], -1)[0]
    for anchor, wanted in zip(BlockPlacement.spaced(20, 4, 5).anchors.tolist(), said, strict=True):
        cache = decoder.new_cache(1, 24)
        decoder.read(cache, chain_placement([[0] * anchor], [0], cache.trash), states[:anchor])
        block = [tokens[0, anchor].item(), *[mask_token(teacher)] * 3]
        placement = whole(chain_placement([block], [anchor], cache.trash), [anchor], 4)
        out = decoder.forward(cache, placement, F.embedding(torch.tensor(block), teacher.embedding))
        torch.testing.assert_close(F.linear(out[1:], teacher.head), wanted, rtol=1e-3, atol=1e-3)


def test_blocks_see_their_context_and_themselves():
    seen = BlockPlacement(torch.tensor([1, 3]), 2).mask(5)
    wanted = [[1, 0, 0, 0, 0, 1, 1, 0, 0]] * 2 + [[1, 1, 1, 0, 0, 0, 0, 1, 1]] * 2
    assert seen.int().tolist() == wanted


def test_deep_targets_are_read_at_five_layers():
    assert fitting_layers((1, 2, 3), 4) == (1, 2, 3)
    assert fitting_layers((1, 2, 3), 36) == (1, 9, 17, 25, 33)
