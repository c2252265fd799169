"""GGUF files as folders: the same model and tokenizer as before the conversion, or one line and an empty cache."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from audit.gate.subjects import parse_subject
from engine.core.errors import ModelError
from engine.models.files.folder import model_digest, open_folder
from engine.models.files.gguf_file import folder_of
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import load_model, load_parts, open_source
from engine.models.numerics.rotations import frequencies
from tests.engine.models.files.gguf_files import PIECES, copy_with, joined, write_folder

gguf = pytest.importorskip("gguf")

TEXTS = (
    "the there other, don't! it's 12 of 1234567 in été and e\u0301te\u0301",
    "the end of other; def f(x):\n\treturn  x\r\n\r\n   y",
    "<|im_start|>the<tool><|im_end|> <|endoftext|>the re",
    "日本語 ½ 🙂",
)
MODELS = {
    "llama": ("llama", "smollm", {"tied": True}),
    "llama untied": ("llama", "gpt-2", {"tied": False}),
    "qwen2": ("qwen2", "qwen2", {"tied": True}),
    "qwen2 untied": ("qwen2", "qwen2", {"tied": False}),
    "llama 3": ("llama", "llama-bpe", {"tied": False, "begins": True}),
    "qwen3": ("qwen3", "qwen2", {"tied": True}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a model with its GGUF file, made at the first use."""
    from engine.backends.llama_cpp.build import build

    home, made = tmp_path_factory.mktemp("gguf"), {}

    def folder(name):
        if name not in made:
            kind, split, rest = MODELS[name]
            made[name] = home / name.replace(" ", "-")
            write_folder(made[name], kind, split, **rest)
            build(made[name], made[name] / "gguf")
        return made[name]

    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "specaudit" / "gguf-1"


@pytest.fixture
def file(folders):
    return folders("llama") / "gguf" / "model.gguf"


def logits_of(source, loader):
    model = load_model(str(source), loader=loader).model
    cache = model.new_cache(1, 16)
    return model.forward(cache, chain_placement([[5, 9, 17, 200, 319, 40]], [0], cache.trash), WantedOutputs()).logits


@pytest.mark.medium
@pytest.mark.parametrize("name", MODELS)
def test_a_folder_becomes_a_file_and_a_folder_again(folders, name):
    folder = folders(name)
    file = folder / "gguf" / "model.gguf"
    for loader in ("lean", "hf"):
        assert torch.equal(logits_of(file, loader), logits_of(folder, loader))
    ours, theirs = (AutoTokenizer.from_pretrained(open_source(str(path)).folder.path) for path in (file, folder))
    for text in TEXTS:
        tokens = theirs(text)["input_ids"]
        assert (ours(text)["input_ids"], ours.decode(tokens)) == (tokens, theirs.decode(tokens))
    assert ours.get_vocab() == theirs.get_vocab()
    chat = [{"role": "user", "content": "the 12"}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    assert open_source(str(file)).folder.eos_ids == open_source(str(folder)).folder.eos_ids == (0, 2)


def test_rounded_weights_are_what_the_file_says(file, tmp_path):
    plain, rounded = (
        load_file(folder_of(path, "it").path / "model.safetensors")
        for path in (file, copy_with(file, tmp_path / "q.gguf", kind=gguf.GGMLQuantizationType.Q8_0))
    )
    assert plain.keys() == rounded.keys()
    for name, weights in plain.items():
        if weights.ndim == 1:
            assert (rounded[name] == weights).all()
            continue
        blocks = weights.reshape(-1, 32)
        step = np.abs(blocks).max(axis=1, keepdims=True) / 127
        assert (rounded[name] != weights).any()
        # half a step, and the rounding of the step to float16
        assert (np.abs(rounded[name].reshape(-1, 32) - blocks) <= step * 0.57).all()


def test_a_file_is_converted_once_and_noted(file, cache, caplog):
    first = open_source(str(file))
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: writing its weights in float32, once, to {first.folder.path}"
    ]
    states = [item.state for item in first.folder.files]
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: folder_of(file, "it"), range(8))) == {folder_of(file, "it")}
    assert [item.state for item in open_source(str(file)).folder.files] == states
    assert [path.name for path in cache.iterdir()] == [hashlib.sha256(file.read_bytes()).hexdigest()]
    load_parts(str(file))
    assert len(caplog.records) == 1


def test_processes_at_once_leave_one_folder(file, cache):
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: folder_of(file, "it"), range(4)))
    assert [path.name for path in cache.iterdir()] == [item.gguf.sha256 for item in made]


def test_the_record_names_the_file(file, cache):
    facts = load_model(str(file)).model.facts
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    files = open_folder(cache / digest, "it").files
    assert (facts["source"], facts["gguf_sha256"]) == (str(file), digest)
    assert facts["model_sha256"] == model_digest(files) == parse_subject(f"target={file}").sha256
    assert facts["tokenizer_sha256"] == parse_subject(f"tokenizer={file}").sha256
    assert "gguf_sha256" not in open_source("bundled:target").facts


def test_without_the_package_a_line_names_the_extra(file, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"model.gguf: GGUF files need gguf; pip install 'specaudit\[gguf\]'"):
        open_source(str(file))
    assert list(cache.iterdir()) == []


def slowed(theta, size, factor):
    """As llama.cpp's converter computes the divisors of Llama 3.1, in floats."""
    plain = 1.0 / theta ** (np.arange(0, size, 2) / size)
    waves = 2 * np.pi / plain
    smooth = (8192 / waves - 1) / 3
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(waves < 8192 / 4, 1, np.where(waves > 8192, factor, middle)).astype(np.float32)


def test_the_frequencies_of_llama_3(file, tmp_path):
    theta = {"llama.rope.freq_base": 500000.0}
    divisors = slowed(500000.0, 8, 32.0)
    assert 1 < divisors[2] < 32 == divisors[3]
    changed = copy_with(file, tmp_path / "l3.gguf", theta, {"rope_freqs.weight": divisors})
    rope = open_source(str(changed)).folder.config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("llama3", 32.0)
    plain = frequencies(8, {**rope, "rope_type": "default"})
    assert np.allclose(np.divide(plain, divisors), frequencies(8, rope), rtol=1e-6)
    other = copy_with(file, tmp_path / "other.gguf", theta, {"rope_freqs.weight": divisors * 1.01})
    with pytest.raises(ModelError, match=r"the frequencies rope_freqs.weight are not those of Llama 3; serve it"):
        open_source(str(other))


def test_ends_are_stated_or_named(file, tmp_path):
    changed = copy_with(
        file, tmp_path / "e.gguf", {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": None}
    )
    assert open_source(str(changed)).folder.eos_ids == (7, 0, 2)


def test_a_text_begins_as_the_file_says_or_as_its_split_does(folders, tmp_path):
    file = folders("llama 3") / "gguf" / "model.gguf"
    for at, (stated, begins) in enumerate(((None, True), (False, False), (True, True))):
        changed = copy_with(file, tmp_path / f"{at}.gguf", {"tokenizer.ggml.add_bos_token": stated})
        tokens = AutoTokenizer.from_pretrained(folder_of(changed, "it").path)("the").input_ids
        assert (tokens[0] == 1) == begins


def test_pieces_join_by_their_scores(file, tmp_path):
    changed = copy_with(file, tmp_path / "pieces.gguf", PIECES)
    folder = open_source(str(changed)).folder
    tokenizer = AutoTokenizer.from_pretrained(folder.path)
    generator = random.Random(4)
    texts = ["".join(generator.choices("the r\u2581aé\U0001f642\n", k=generator.randrange(30))) for _ in range(300)]
    for text in ["there the", " the  the ", "ththere", *texts]:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert tokens == joined(text), text
        assert tokenizer.decode(tokens) == text.replace("\u2581", " ")
    between = tokenizer.encode("the</s>the<tool>the", add_special_tokens=False)
    assert between == [*joined("the"), 2, *joined("the"), 3, *joined("the")]
    assert tokenizer.encode("the") == [1, *joined("the")]
    assert folder.eos_ids[0] == 2


def test_a_file_says_whether_a_space_stands_before_a_text(file, tmp_path):
    changed = copy_with(file, tmp_path / "bare.gguf", {**PIECES, "tokenizer.ggml.add_space_prefix": False})
    tokenizer = AutoTokenizer.from_pretrained(folder_of(changed, "it").path)
    tokens = tokenizer.encode("the", add_special_tokens=False)
    assert tokens == joined("the", prefix="")
    assert tokenizer.decode(tokens) == "the"


REFUSED = {
    "architecture": ({"general.architecture": "gemma2"}, {}, "architecture gemma2, where only llama, qwen2, qwen3"),
    "field": ({"llama.rope.scaling.factor": 4.0}, {}, "the field llama.rope.scaling.factor is not known"),
    "heads": ({"llama.attention.value_length": 16}, {}, "heads of different sizes, 8, 16, are not known"),
    "missing": ({}, {"blk.1.attn_k.weight": None}, "tensor model.layers.1.self_attn.k_proj.weight has shape none"),
    "more": ({}, {"blk.0.attn_q.bias": np.ones(32, np.float32)}, "self_attn.q_proj.bias has shape [32], where"),
    "unknown": ({}, {"blk.0.odd.weight": np.ones(3, np.float32)}, "tensor model.layers.0.odd.weight has shape [3]"),
    "shape": ({}, {"output_norm.weight": np.ones(5, np.float32)}, "model.norm.weight has shape [5], where"),
    "split": ({"tokenizer.ggml.pre": "tekken"}, {}, "the way to split a text tekken is not known"),
    "tokenizer": ({"tokenizer.ggml.model": "t5"}, {}, "a tokenizer of kind t5, where only gpt2 and llama are read"),
    "bytes": ({**PIECES, "tokenizer.ggml.tokens": ["<0x00>"] * 320}, {}, "without all bytes, are not read"),
    "lacking": ({"llama.block_count": None}, {}, "not a readable GGUF file (KeyError: 'block_count')"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(file, tmp_path, cache, name):
    fields, tensors, reason = REFUSED[name]
    changed = copy_with(file, tmp_path / "odd.gguf", fields, tensors)
    refused(changed, cache, reason)


def refused(path, cache, reason):
    with pytest.raises(ModelError) as caught:
        open_source(str(path))
    line = str(caught.value)
    assert reason in line
    assert line.startswith(f"{path}: ")
    assert line.endswith("; serve it with llama.cpp and audit the server: audit probe URL")
    assert "\n" not in line
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3, 40, 5000, -1])
def test_a_file_that_is_none_or_not_whole(file, tmp_path, cache, size):
    path = tmp_path / "cut.gguf"
    path.write_bytes(file.read_bytes()[:size])
    refused(path, cache, "not a readable GGUF file")
    path.write_bytes(b"PK" * 400)
    refused(path, cache, "not a readable GGUF file (ValueError: GGUF magic invalid)")


def test_an_unknown_type_of_weights(file, tmp_path, cache):
    data = bytearray(file.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (99).to_bytes(4, "little")
    (tmp_path / "odd.gguf").write_bytes(data)
    refused(tmp_path / "odd.gguf", cache, "is not a valid GGMLQuantizationType")


def test_a_cache_that_cannot_be_written(file, tmp_path, monkeypatch):
    (tmp_path / "full").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))
    with pytest.raises(ModelError, match="Not a directory; make room, or set XDG_CACHE_HOME"):
        open_source(str(file))


def test_no_tokenizer_is_none(file, tmp_path):
    changed = copy_with(file, tmp_path / "bare.gguf", {"tokenizer.ggml.model": "no_vocab"})
    assert load_model(str(changed)).tokenizer is None
    assert json.loads((open_source(str(changed)).folder.path / "config.json").read_text())["vocab_size"] == 320
