"""The MLP speculator: its recurrence, and how its checkpoints are read."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from engine.core.errors import ModelError
from engine.core.types import Protocol, SamplingParams
from engine.heads.formats import layout_of
from engine.heads.formats.mlp_speculator import LAYOUT
from engine.models.files.folder import open_folder
from tests.engine.build import Setup, requests

from .single_state import drafted_steps
from .tiny import generate, mlp_speculator_head

SHAPED = SamplingParams(temperature=0.9, repetition_penalty=1.3, max_new_tokens=24, seed=2)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def expected(state, newest, drafted):
    """Logits of every stage: first the target's state and the newest token, then what was drafted."""
    tensors, count = mlp_speculator_head().tensors, 3
    keep = math.sqrt(0.5) ** (1 / count)
    share = math.sqrt((1 - keep**2) * 12 / 2)
    state = state / state.pow(2).mean().add(1e-6).sqrt() / math.sqrt(2)
    for stage, token in zip(range(count), [newest, *drafted], strict=False):
        mixed = keep * (tensors[f"proj.{stage}"] @ state) + share * tensors[f"emb.{stage}"][token]
        mixed = mixed / keep
        mixed = mixed / mixed.pow(2).mean().add(1e-6).sqrt()
        state = F.gelu(mixed * tensors[f"norm.{stage}.weight"] + tensors[f"norm.{stage}.bias"])
        yield tensors[f"head.{stage}"] @ state


@pytest.mark.medium
@pytest.mark.parametrize("case", ["mlp_speculator", "mlp_speculator-soft"])
def test_every_stage_reads_the_state_before_and_the_token_before(case):
    setup = Setup(case, Protocol.CHAIN, rows=3, gamma=5)
    checked = longest = 0
    for generation in generate(setup, requests(8, SHAPED)).values():
        for step in drafted_steps(generation):
            longest = max(longest, len(step.tokens))
            for i, logits in enumerate(expected(step.state, step.history[-1], step.tokens[:-1])):
                if i == len(step.tokens):
                    break
                row = step.row(logits, step.tokens[:i])
                if case == "mlp_speculator":
                    assert step.tokens[i] == np.argmax(row.scores)
                    checked += 1
                elif i in step.q:
                    np.testing.assert_allclose(step.q[i], row.p, atol=1e-9)
                    checked += 1
    assert checked > 50
    assert longest == 3


# checkpoints

CONFIG = {"model_type": "mlp_speculator", "n_predict": 3, "vocab_size": 7, "emb_dim": 4, "inner_dim": 6}


def published(prefix="speculator.", stages=3, inner=6):
    generator = torch.Generator().manual_seed(1)
    shapes = {}
    for i in range(stages):
        shapes |= {f"emb.{i}.weight": (7, inner), f"proj.{i}.weight": (inner, inner if i else 4)}
        shapes |= {f"head.{i}.weight": (7, inner), f"ln.{i}.weight": (inner,), f"ln.{i}.bias": (inner,)}
    return {prefix + name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def tied(tensors, copies=False):
    """Stages after the first share; the copies may be stored too."""
    kept = {name: each for name, each in tensors.items() if ".0." in name or name.endswith("proj.1.weight")}
    if copies:
        for name in tensors:
            kind, stage, part = name.split(".")[-3:]
            kept[name] = kept[f"speculator.{kind}.{min(int(stage), int(kind == 'proj'))}.{part}"].clone()
    return kept


def read(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    assert layout_of(config) == LAYOUT
    return LAYOUT.read(open_folder(folder, "folder"))


@pytest.mark.parametrize("prefix", ["speculator.", ""])
def test_names_with_and_without_the_writer_s_prefix(tmp_path, prefix):
    head = read(tmp_path, CONFIG, published(prefix))
    assert len(head.tensors) == 15
    assert torch.equal(head.tensors["proj.0"], published()["speculator.proj.0.weight"])
    assert torch.equal(head.tensors["norm.2.bias"], published()["speculator.ln.2.bias"])
    wanted = {"stages": 3, "vocabulary": 7, "hidden": 4, "inner": 6, "scale_input": False}
    assert (head.family, head.settings) == ("mlp_speculator", wanted)


def test_an_inner_size_of_0_is_the_target_s(tmp_path):
    assert read(tmp_path, CONFIG | {"inner_dim": 0}, published(inner=4)).settings["inner"] == 4


@pytest.mark.parametrize("copies", [False, True])
def test_tied_stages_share_all_but_the_first_projection(tmp_path, copies):
    head = read(tmp_path, CONFIG | {"tie_weights": True}, tied(published(), copies))
    assert len(head.tensors) == 15
    for name in ("emb.{}", "head.{}", "norm.{}.weight", "norm.{}.bias"):
        assert torch.equal(head.tensors[name.format(2)], head.tensors[name.format(0)])
    assert torch.equal(head.tensors["proj.2"], head.tensors["proj.1"])
    assert head.tensors["proj.0"].shape == (6, 4)


def test_copies_that_differ_are_not_tied(tmp_path):
    with pytest.raises(ModelError, match=r"says tie_weights, but emb\.1 is not emb\.0"):
        read(tmp_path, CONFIG | {"tie_weights": True}, published())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"n_predict": 4}, "n_predict 4, but the tensors have 3 stages"),
        (CONFIG | {"n_predict": 2}, "n_predict 2, but the tensors have 3 stages"),
        (CONFIG | {"n_predict": 1, "tie_weights": True}, "n_predict 1 leaves nothing to tie"),
        (CONFIG | {"emb_dim": 5}, r"'speculator.proj.0.weight' has shape \(6, 4\) instead of \(6, 5\)"),
        (CONFIG | {"vocab_size": None}, "vocab_size must be a positive integer"),
        (CONFIG | {"inner_dim": 3}, r"'speculator.emb.0.weight' has shape \(7, 6\)"),
    ],
)
def test_a_configuration_that_the_tensors_contradict_is_refused(tmp_path, config, message):
    with pytest.raises(ModelError, match=message):
        read(tmp_path, config, published())


def test_missing_and_unexpected_tensors_are_named(tmp_path):
    tensors = published()
    with pytest.raises(ModelError, match=r"'speculator\.ln\.1\.bias' is missing"):
        read(tmp_path, CONFIG, {name: each for name, each in tensors.items() if name != "speculator.ln.1.bias"})
    with pytest.raises(ModelError, match=r"unexpected tensor 'speculator\.cell_emb\.0\.weight'"):
        read(tmp_path, CONFIG, tensors | {"speculator.cell_emb.0.weight": torch.zeros(1)})
