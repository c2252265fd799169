"""Model folders from somebody else: one line for each oddity, and a digest that is of the bytes that were loaded."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import threading
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from engine.core.errors import EngineError, ModelError
from engine.heads.loading import load_model_or_head
from engine.models.files import verified_files as pinning
from engine.models.files.folder import INDEX, bundled_folder, model_digest, open_folder
from engine.models.files.verified_files import pinned
from engine.models.loading import LoadOptions, load_model, load_opened, open_source
from tests.audit.invoke import invoke
from tests.support.inert import unprintable

WAY = LoadOptions("float32", "lean", "fast", "cpu")
ODD = (0, -1, 2**40, 2**70, True, 1.5, float("nan"), float("inf"), "x", "", [], [1], [[]], {}, {"a": 1}, [None])
HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One layer of nothing much, so that an attempt takes milliseconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("hostile") / "tiny"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=24, num_hidden_layers=1, max_position_embeddings=64, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "tiny")


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def attempt(folder, loader="lean"):
    """Load a folder that may be odd; the message of its refusal, or None."""
    try:
        load_model_or_head(str(folder), LoadOptions("float32", loader, "fast", "cpu"), None, None)
    except EngineError as error:
        return str(error)
    return None


def one_line(folder, loader="lean"):
    """Whether the folder is refused, which takes one line."""
    message = attempt(folder, loader)
    assert message is None or "\n" not in message
    return message is not None


@pytest.mark.parametrize("shard", ["model.safetensors", "\x1b[2J\u202e.safetensors", "<script>.safetensors"])
def test_names_of_tensors_and_shards_print_as_what_they_are(folder, shard, tmp_path):
    name = "\x1b[31m\u202eevil\n::error::\x9b2J" + "x" * 100_000
    (folder / INDEX).write_text(json.dumps({"weight_map": {name: shard}}))
    save_file({name: load_file(folder / "model.safetensors")["model.norm.weight"]}, folder / "model.safetensors")
    suite, message = tmp_path / "suite.yaml", attempt(folder)
    assert message is not None
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "a"}\n')
    suite.write_text(
        f"version: 1\nname: n\nmodels: {{target: '{folder}'}}\nworkloads: [{{name: w, prompts: p.jsonl}}]\n"
        "arms: [{name: a, proposer: {kind: ngram, gamma: 2}, verifier: greedy}]\n"
    )
    result = invoke("run", str(suite), "--store", str(tmp_path / "audit.db"))
    assert result.exit_code == 2
    assert unprintable(result.stdout + result.stderr) == []
    assert len(result.stderr) < 9_000


def with_field(document, name, value):
    """The document with one field of it, or of its rotation, replaced."""
    if name.startswith("rope."):
        return document | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3, name[5:]: value}}
    return document | {name: value}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "partial_rotary_factor": 1.0,
}


def odd_configurations(document):
    rope = (f"rope.{name}" for name in ("rope_type", "rope_theta", *LLAMA3))
    names = [*document, *rope, "text_config", "rope_scaling"]
    for name in ("sliding_window", "layer_types", "head_dim", "quantization_config", "attention_chunk_size", *names):
        for value in ODD:
            yield with_field(document, name, value)


@pytest.mark.medium
def test_an_odd_configuration_is_one_line_with_our_own_forward(folder):
    document = json.loads((folder / "config.json").read_text())
    refused = 0
    for odd in odd_configurations(document):
        (folder / "config.json").write_text(json.dumps(odd))
        refused += one_line(folder)
    assert refused > 300


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_an_odd_configuration_of_a_head_is_one_line(tmp_path, head):
    folder = shutil.copytree(bundled_folder(f"bundled:{head}"), tmp_path / head)
    document = json.loads((folder / "config.json").read_text())
    for odd in odd_configurations(document):
        (folder / "config.json").write_text(json.dumps(odd))
        one_line(folder)


@pytest.mark.slow
def test_an_odd_configuration_is_one_line_with_transformers(folder):
    document = json.loads((folder / "config.json").read_text())
    for odd in odd_configurations(document):
        (folder / "config.json").write_text(json.dumps(odd))
        one_line(folder, "hf")


@pytest.mark.parametrize("loader", ["lean", "hf"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2**40}, "num_hidden_layers must be a whole number from 0 to 10000, not 1099511627776"),
        # no weight bounds the positions, each of which has its rotations
        ({"max_position_embeddings": 2**31}, "max_position_embeddings must be a whole number from 0 to 16777216"),
        ({"rope_parameters": 7}, "rope_parameters must be a mapping, not 7"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 0}}, "rope_parameters.factor must be a finite number"),
        ({"rope_theta": "x"}, "rope_theta must be a finite number from 1 on, not 'x'"),
        # sums of such rotations would not end
        ({"rope_theta": 1e-70}, "rope_theta must be a finite number from 1 on, not 1e-70"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 1e-70}},
            "rope_scaling.factor must be a finite number from 1",
        ),
        ({"layer_types": True}, "layer_types must be a list of texts, not True"),
        ({"architectures": 1}, "architectures must be a list of texts, not 1"),
        ({"sliding_window": [4]}, r"sliding_window must be a whole number from 0 to \d+, not \[4\]"),
    ],
)
def test_a_field_with_an_impossible_value_is_named(folder, loader, changes, message):
    edit(folder, **changes)
    with pytest.raises(ModelError, match=rf"config\.json: {message}"):
        load_model(str(folder), loader=loader)


@pytest.mark.parametrize(("loader", "numerics"), [("lean", "fast"), ("lean", "ordered"), ("hf", "fast")])
def test_a_context_of_millions_costs_no_memory_until_it_is_used(folder, loader, numerics):
    """Tables of 2^24 positions would take gigabytes."""
    edit(folder, max_position_embeddings=2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded = load_model(str(folder), loader=loader, numerics=numerics)
    assert loaded.model.context == 2**24
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 9_999}, "num_hidden_layers is 9999, but the files hold 12 tensors"),
        ({"intermediate_size": 2**30}, "hidden_size x intermediate_size is more than the files hold"),
        ({"vocab_size": 2**30}, "vocab_size x hidden_size is more than the files hold"),
    ],
)
def test_what_transformers_builds_is_bounded_by_the_files(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(str(folder), loader="hf")


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": null}}',
        '{"weight_map": {"a": ["model.safetensors"]}}',
        '{"weight_map": {"a": "b\\nc"}}',
        '{"weight_map": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "9" * 10_000,
    ],
)
def test_an_odd_index_is_one_line(folder, index):
    (folder / INDEX).write_text(index)
    with pytest.raises(ModelError, match=INDEX) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


def test_json_that_is_nested_too_deep_is_one_line(folder):
    (folder / "config.json").write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ModelError, match="nested too deep"):
        load_model(str(folder))


@pytest.mark.parametrize("device", ["meta", "privateuseone", "xpu", "lazy", "fpga", "cuda:99", "cpu:x", "", "\n"])
def test_a_device_without_numbers_is_one_line(folder, device):
    with pytest.raises(EngineError) as caught:
        load_model(str(folder), device=device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["~nobody-of-that-name", "hf:a/b\n", "hf:a/b\x1b[31m", "a\0b", "a" * 5_000])
def test_a_source_that_is_no_place_is_one_line(source):
    with pytest.raises(ModelError) as caught:
        open_source(source)
    assert str(caught.value).isprintable()


def test_a_line_end_in_a_files_name_cannot_make_two_folders_equal(folder):
    (folder / "a.safetensors\n0  b.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="has control characters"):
        open_folder(folder, "tiny")


def other_weights(folder: Path) -> Path:
    """A second file of the same size with other numbers."""
    tensors = {name: tensor + 1 for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "other", {"format": "pt"})
    return folder / "other"


@pytest.mark.parametrize("loader", ["lean", "hf"])
def test_a_link_that_is_swapped_meanwhile_is_noticed(folder, loader):
    """The digest is computed when the folder is opened, and the link points elsewhere before the weights are read."""
    other, link = other_weights(folder), folder / "model.safetensors"
    link.rename(folder / "first")
    link.symlink_to("first")
    opened = open_source(str(folder))
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(ModelError, match=r"model\.safetensors: changed while it was read"):
        load_opened(opened, LoadOptions("float32", loader, "fast", "cpu"))


@pytest.mark.medium
@pytest.mark.parametrize("loader", ["lean", "hf"])
def test_a_link_that_is_swapped_all_the_time_never_parts_digest_and_weights(folder, loader):
    other, link = other_weights(folder), folder / "model.safetensors"
    link.rename(folder / "first")
    os.symlink("first", link)
    weights = {"first": load_file(folder / "first"), "other": load_file(other)}
    expected = {}
    for name in weights:
        swap(link, name)
        digest = model_digest(open_folder(folder, "tiny").files)
        expected[digest] = float(weights[name]["model.norm.weight"][0])
    assert len(expected) == 2
    stopped = threading.Event()

    def swap_on():
        while not stopped.is_set():
            for name in weights:
                swap(link, name)

    swapping = threading.Thread(target=swap_on)
    swapping.start()
    try:
        loaded = 0
        for _ in range(30):
            # refused where the link was swapped between two readings
            with contextlib.suppress(ModelError):
                model = load_model(str(folder), loader=loader).model
                loaded += 1
                assert first_norm(model) == pytest.approx(expected[model.facts["model_sha256"]])
        assert loaded
    finally:
        stopped.set()
        swapping.join()


def swap(link, name):
    fresh = link.with_name("link")
    os.symlink(name, fresh)
    fresh.replace(link)


def first_norm(model):
    network = getattr(model, "network", None)
    norm = network.model.norm.weight if network is not None else model.weights.norm
    return float(norm.detach()[0])


def test_a_file_that_is_written_while_it_is_read_is_noticed(folder):
    content = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ModelError, match="changed while it was read"), pinned(open_folder(folder, "tiny")):
        (folder / "model.safetensors").write_bytes(content)


def test_without_links_to_open_files_the_state_is_compared_all_the_same(folder, monkeypatch):
    monkeypatch.setattr(pinning, "OPEN_FILES", folder / "none")
    assert load_model(str(folder)).model.facts["model_sha256"]
    opened = open_source(str(folder))
    (folder / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match=r"config\.json: changed while it was read"):
        load_opened(opened, WAY)


def test_no_handle_stays_open(folder):
    for loader in ("lean", "hf"):
        load_model(str(folder), loader=loader)
        # other handles of the process come and go with its garbage
        opened = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _links(name)]
        assert not [path for path in opened if path.startswith(str(folder))]


def _links(name):
    return os.path.islink(f"/proc/self/fd/{name}")
