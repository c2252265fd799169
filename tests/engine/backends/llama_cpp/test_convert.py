"""GGUF files: the order of weights, the words of a vocabulary, and the models that are refused in words."""

import json

import numpy as np
import pytest

from engine.backends.llama_cpp.convert import CONVERTER, beyond_gguf, vocabulary_of
from engine.core.errors import ModelError
from engine.models.files.folder import bundled_folder
from engine.models.files.gguf_format import CONTROL, SPLITS, UNUSED, USER_DEFINED, named_tensors, neighbours
from engine.models.loading import open_source

SIZE = 2048


def turned(x, size):
    """Rotary positions on halves of a head, at a place where each pair has an angle of its own."""
    angle = np.arange(size // 2) + 1.0
    first, second = x[: size // 2], x[size // 2 :]
    return np.concatenate(
        (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle))
    )


def turned_in_pairs(x, size):
    angle = np.arange(size // 2) + 1.0
    pairs = x.reshape(-1, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    both = (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle))
    return np.stack(both, axis=1).reshape(-1)


def test_queries_and_keys_meet_as_before_when_pairs_are_neighbours():
    generator = np.random.default_rng(0)
    size = 8
    query, key = (generator.normal(size=(2 * size, 5)) for _ in range(2))
    x = generator.normal(size=5)
    for head in range(2):
        rows = slice(head * size, head * size + size)
        halves = turned((query @ x)[rows], size) @ (key @ x)[rows]
        pairs = turned_in_pairs((neighbours(query, 2) @ x)[rows], size) @ (neighbours(key, 2) @ x)[rows]
        assert pairs == pytest.approx(halves)
        assert turned_in_pairs((query @ x)[rows], size) @ (key @ x)[rows] != pytest.approx(halves)


def test_only_the_family_llama_is_turned():
    weights = {"model.layers.1.self_attn.q_proj.weight": np.arange(8.0).reshape(8, 1), "lm_head.weight": np.ones(1)}
    shape = {"num_attention_heads": 1, "num_key_value_heads": 1}
    llama, qwen = (dict(named_tensors(weights, {**shape, "model_type": kind})) for kind in ("llama", "qwen2"))
    assert set(llama) == {"blk.1.attn_q.weight", "output.weight"}
    assert llama["blk.1.attn_q.weight"][:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert qwen["blk.1.attn_q.weight"][:, 0].tolist() == list(range(8))
    with pytest.raises(KeyError):
        dict(named_tensors({"model.layers.0.mystery.weight": np.ones(1)}, {**shape, "model_type": "llama"}))


def test_the_vocabulary_of_the_bundled_models():
    vocabulary = vocabulary_of(bundled_folder("bundled:target"), SIZE)
    assert vocabulary is not None
    assert (vocabulary.split, vocabulary.begins, len(vocabulary.tokens)) == ("smollm", False, SIZE)
    assert (vocabulary.tokens[0], vocabulary.kinds[0]) == ("<|end|>", CONTROL)
    assert (vocabulary.tokens[2046], vocabulary.kinds[2046]) == ("<tool_call>", USER_DEFINED)
    assert vocabulary.merges[1] == "ĠĠ ĠĠ"
    padded = vocabulary_of(bundled_folder("bundled:target"), SIZE + 1)
    assert padded is not None
    assert (padded.tokens[-1], padded.kinds[-1]) == (f"[unused{SIZE}]", UNUSED)


def stated(tmp_path, **changed):
    document = json.loads((bundled_folder("bundled:target") / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **changed}))
    return tmp_path


@pytest.mark.parametrize(("expression", "name"), SPLITS.items())
def test_published_ways_to_split_a_text_are_known(tmp_path, expression, name):
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    parts = [split, {"type": "ByteLevel", "use_regex": False}]
    begins = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>"}}, {"Sequence": {}}]}
    processor = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, begins]}
    found = vocabulary_of(
        stated(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": parts}, post_processor=processor), SIZE
    )
    assert found is not None
    assert (found.split, found.begins) == (name, True)


def test_a_tokenizer_that_llama_cpp_lacks_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not know this pre_tokenizer \\(Whitespace\\)"):
        vocabulary_of(stated(tmp_path, pre_tokenizer={"type": "Whitespace"}), SIZE)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    with pytest.raises(ModelError, match="byte-level BPE tokenizers only"):
        vocabulary_of(stated(tmp_path, model={**model, "byte_fallback": True}), SIZE)
    (tmp_path / "tokenizer.json").unlink()
    assert vocabulary_of(tmp_path, SIZE) is None


def test_a_model_that_a_gguf_file_lacks_is_refused():
    config = dict(open_source("bundled:target").folder.config)
    assert beyond_gguf(config) is None
    assert beyond_gguf({**config, "attention_bias": True}) == "knows no attention_bias"
    CONVERTER.require(open_source("bundled:target"))
    with pytest.raises(ModelError, match="the converter to gguf knows LlamaForCausalLM"):
        CONVERTER.require(open_source("bundled:eagle3"))
