"""Medusa: which state is read, what every head says, how trees are filled; the checkpoint's dialects."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from engine import proposers
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import open_models
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.heads.formats import layout_of
from engine.heads.formats.medusa import LAYOUT
from engine.heads.loading import load_head
from engine.models.files.folder import open_folder
from engine.record.metrics import acceptance
from engine.record.trace import decode
from engine.train.prompts import prompt_rows
from tests.engine.build import Setup, requests
from tests.support.head_cases import parts_with
from tests.support.tiers import fast_first

from .single_state import drafted_steps
from .tiny import generate, medusa_head

SHAPED = SamplingParams(temperature=0.9, repetition_penalty=1.3, max_new_tokens=24, seed=2)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def head_logits(state, head, known=None):
    """Head `head` by the paper's formula, [8]."""
    tensors = medusa_head(known=known).tensors
    x = state + F.silu(tensors[f"block.{head}.0.weight"] @ state + tensors[f"block.{head}.0.bias"])
    logits = torch.full((8,), -torch.inf, dtype=torch.float64)
    logits[: known or 8] = tensors[f"head.{head}.weight"] @ x
    return logits


def drafted(case, protocol, sampling=SHAPED, gamma=5):
    setup = Setup(case, protocol, rows=3, gamma=gamma)
    return [step for each in generate(setup, requests(8, sampling)).values() for step in drafted_steps(each)]


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [SHAPED, replace(SHAPED, temperature=0.0)], ids=["sampled", "greedy"])
def test_head_i_drafts_the_token_i_after_the_newest_from_the_state_before_it(sampling):
    steps = drafted("medusa", Protocol.GUMBEL, sampling)
    assert len(steps) > 50
    assert max(len(step.tokens) for step in steps) == 3
    for step in steps:
        for i, token in enumerate(step.tokens):
            assert token == np.argmax(step.row(head_logits(step.state, i), step.tokens[:i]).scores)


@pytest.mark.medium
def test_a_soft_draft_is_drawn_from_the_heads_own_distributions_over_the_known_tokens():
    steps = drafted("medusa-soft", Protocol.CHAIN)
    checked = 0
    for step in steps:
        for node, q in step.q.items():
            wanted = step.row(head_logits(step.state, node, known=6), step.tokens[:node]).p
            np.testing.assert_allclose(q, wanted, atol=1e-12)
            assert q[6:].sum() == 0
            checked += 1
    assert checked > 50


@pytest.mark.medium
def test_a_tree_holds_the_most_likely_tokens_of_each_level_s_head():
    steps = drafted("medusa-tree", Protocol.TREE, gamma=15)
    assert max(len(step.tokens) for step in steps) == 3 + 6 + 6
    for step in steps:
        paths = [()]
        for token, parent in zip(step.tokens, step.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        for node in range(-1, len(step.tokens)):
            below = [token for token, parent in zip(step.tokens, step.parents, strict=True) if parent == node]
            if below:
                row = step.row(head_logits(step.state, len(paths[node + 1])), paths[node + 1])
                assert below == np.argsort(-row.scores, kind="stable")[: len(below)].tolist()


@pytest.mark.medium
def test_a_small_budget_keeps_a_tree_s_first_branch_whole():
    steps = drafted("medusa-tree", Protocol.TREE, gamma=4)
    most = SHAPED.max_new_tokens - 3  # one token more than the tree is deep must still be wanted
    deep = [step for step in steps if len(step.history) - len(step.request.prompt) < most]
    assert len(deep) > 50
    assert all(step.parents == [-1, 0, 0, 1] for step in deep)


def test_a_request_that_masks_every_known_token_is_still_served():
    words = tuple((token,) for token in range(6))
    sampling = SamplingParams(temperature=1.0, bad_words=words, max_new_tokens=8)
    for generation in generate(Setup("medusa-soft", Protocol.CHAIN), requests(2, sampling)).values():
        assert set(generation.tokens) <= {6, 7}
        assert len(generation.tokens) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "4,0"}, "widths of at least 1"),
        ({"tree": "2,2,1,1"}, "option tree has 4 levels, but the head has 3 heads"),
        ({"tree": "2,1", "draw": "soft"}, "option draw must be top with a tree"),
        ({"tree": "wide"}, "option tree must be numbers"),
        ({"draw": "hard"}, "option draw must be top or soft"),
    ],
)
def test_options_that_contradict_are_refused(options, message):
    with pytest.raises(InvalidRequest, match=message):
        proposers.build("medusa", parts_with(medusa_head(), options=options))


# checkpoints

HIDDEN, VOCABULARY, HEADS, LAYERS = 4, 10, 3, 2
VLLM = {
    "architectures": ["MedusaModel"],
    "num_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "truncated_vocab_size": VOCABULARY,
    "medusa_fc_bias": True,
}
RELEASE = {"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS, "base_model_name_or_path": "base"}


def published(dialect, rows=VOCABULARY):
    """The same numbers under each dialect's names."""
    generator = torch.Generator().manual_seed(1)
    prefix = {"v1": "medusa_head.", "wrapped": "medusa_heads."}.get(dialect, "")
    vllm, tensors = dialect in ("vllm", "wrapped"), {}
    for h in range(HEADS):
        for layer in range(LAYERS):
            name = f"blocks.{h}.layers.{layer}" if vllm else f"{h}.{layer}.linear"
            tensors[f"{prefix}{name}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator)
            tensors[f"{prefix}{name}.bias"] = torch.randn(HIDDEN, generator=generator)
        name = f"lm_heads.{h}" if vllm else f"{h}.{LAYERS}"
        tensors[f"{prefix}{name}.weight"] = torch.randn(rows, HIDDEN, generator=generator)
    return tensors


def read(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    assert layout_of(config) == LAYOUT
    return LAYOUT.read(open_folder(folder, "folder"))


def test_all_dialects_read_to_the_same_head(tmp_path):
    base = {"model.embed_tokens.weight": torch.zeros(2, 2), "lm_head.weight": torch.zeros(2, 2)}
    whole = RELEASE | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": HIDDEN}
    heads = {
        "vllm": read(tmp_path, VLLM, published("vllm")),
        "wrapped": read(tmp_path, VLLM, published("wrapped")),
        "v0": read(tmp_path, RELEASE, published("v0")),
        "v1": read(tmp_path, whole, published("v1") | base),
    }
    names = {f"block.{h}.{layer}.{part}" for h in range(3) for layer in range(2) for part in ("weight", "bias")}
    names |= {f"head.{h}.weight" for h in range(3)}
    for head in heads.values():
        assert head.family == "medusa"
        assert head.tensors.keys() == names
        assert all(torch.equal(head.tensors[name], heads["vllm"].tensors[name]) for name in names)
        assert head.settings == heads["vllm"].settings
    assert (heads["v0"].settings["heads"], heads["v0"].settings["vocabulary"]) == (HEADS, VOCABULARY)


@pytest.mark.parametrize(
    ("config", "dialect", "message"),
    [
        (VLLM | {"num_heads": 5}, "vllm", "num_heads 5, but the tensors have 3 heads"),
        (VLLM | {"num_hidden_layers": 1}, "vllm", "num_hidden_layers 1, but the tensors have 2 layers per head"),
        (RELEASE | {"medusa_num_heads": 2}, "v0", "medusa_num_heads 2, but the tensors have 3 heads"),
        (RELEASE | {"medusa_num_layers": 1}, "v1", "medusa_num_layers 1, but the tensors have 2 layers"),
        (VLLM | {"hidden_size": 8}, "vllm", "hidden_size 8, but the tensors have 4"),
        (VLLM | {"vocab_size": 12, "truncated_vocab_size": 12}, "vllm", "vocab_size 12, but .* have 10 rows"),
        (VLLM | {"medusa_fc_bias": False}, "vllm", "unexpected tensor 'blocks.0.layers.0.bias'"),
        (VLLM | {"truncated_vocab_size": 6}, "vllm", "tensor 'token_map' is missing"),
    ],
)
def test_a_configuration_that_the_tensors_contradict_is_refused(tmp_path, config, dialect, message):
    with pytest.raises(ModelError, match=message):
        read(tmp_path, config, published(dialect))


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path):
    tensors = published("v0")
    with pytest.raises(ModelError, match=r"'1\.1\.linear\.weight' is missing"):
        read(tmp_path, RELEASE, {name: each for name, each in tensors.items() if name != "1.1.linear.weight"})
    with pytest.raises(ModelError, match=r"'2\.2\.weight' has shape \(9, 4\)"):
        read(tmp_path, RELEASE, tensors | {"2.2.weight": torch.zeros(9, 4)})
    with pytest.raises(ModelError, match=r"unexpected tensor 'model\.norm\.weight'"):
        read(tmp_path, RELEASE, tensors | {"model.norm.weight": torch.zeros(4)})
    with pytest.raises(ModelError, match="is this a Medusa head"):
        read(tmp_path, VLLM, {"fc.weight": torch.zeros(2, 2)})


TRUNCATED = VLLM | {"truncated_vocab_size": 6}
TOKENS = torch.tensor([7, 1, 3, 0, 9, 4])


def test_a_token_map_selects_rows_unless_they_are_selected_already(tmp_path):
    whole = read(tmp_path, TRUNCATED, published("vllm") | {"token_map": TOKENS})
    cut = {name: each[TOKENS] if "lm_heads" in name else each for name, each in published("vllm").items()}
    selected = read(tmp_path, TRUNCATED, cut | {"token_map": TOKENS})
    for head in (whole, selected):
        assert head.settings["vocabulary"] == VOCABULARY
        assert head.tensors["token_map"].tolist() == TOKENS.tolist()
        assert torch.equal(head.tensors["head.1.weight"], published("vllm")["lm_heads.1.weight"][TOKENS])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([7, 1, 3, 0, 9, 10]), "token_map must name tokens from 0 to 9, each once"),
        (torch.tensor([7, 1, 3, 0, 9, 9]), "token_map must name tokens from 0 to 9, each once"),
        (torch.tensor([7, 1, 3]), r"'token_map' has shape \(3,\)"),
        (TOKENS.float(), "token_map is torch.float32, not whole numbers"),
    ],
)
def test_a_broken_token_map_is_refused(tmp_path, tokens, message):
    with pytest.raises(ModelError, match=message):
        read(tmp_path, TRUNCATED, published("vllm") | {"token_map": tokens})


def test_a_shared_output_matrix_may_be_stored_once_or_in_equal_copies(tmp_path):
    config, tensors = VLLM | {"original_lm_head": True}, published("vllm")
    first = tensors["lm_heads.0.weight"]
    for name in ("lm_heads.0.weight", "lm_head.weight"):
        once = {key: each for key, each in tensors.items() if "lm_head" not in key} | {name: first.clone()}
        head = read(tmp_path, config, once)
        assert all(torch.equal(head.tensors[f"head.{h}.weight"], first) for h in range(HEADS))
    with pytest.raises(ModelError, match=r"says original_lm_head, but 'lm_heads\.1\.weight' is not"):
        read(tmp_path, config, tensors)


def test_a_pickle_alone_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RELEASE))
    torch.save(published("v0"), tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=r"medusa_lm_head.pt: pickled weights .* weights_only=True.*model.safetensors"):
        load_head(str(tmp_path))
    save_file(torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True), tmp_path / "model.safetensors")
    assert load_head(str(tmp_path)).head.settings["heads"] == HEADS


# the bundled head


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "protocol"), fast_first([({}, Protocol.GREEDY), ({"tree": "4,2,1"}, Protocol.TREE)])
)
def test_the_bundled_head_drafts_tool_calls_well(options, protocol):
    """A state or a head taken one place off would still decode without loss, only slowly."""
    backend = open_models({"target": ModelSource("bundled:target"), "head": ModelSource("bundled:medusa")})
    plan = EngineSpec(protocol, "medusa", 16, "head", options=options, level=RecordLevel.TOKENS, rows=4)
    engine = backend.arm(plan)
    wanted = [
        Request(row["id"], engine.encode(Prompt(tuple(row["messages"]), tuple(row["tools"]))), SamplingParams())
        for row in prompt_rows(4)["tools"]
    ]
    counts = acceptance(decode(each.trace) for each in engine.generate(wanted))
    assert counts.acceptance_length > 2.5
    assert engine.effective_config().facts["head"]["family"] == "medusa"
