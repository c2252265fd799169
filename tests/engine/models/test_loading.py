"""Model folders on disk: what is loaded, what is refused and how it is named, what the digests cover."""

import hashlib
import json
import shutil

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from engine.core.errors import ModelError
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.loading import check_same_tokenizer, load_model, model_digest, tokenizer_digest

VOCABULARY = {"<eos>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5}
MERGES = [("a", "b"), ("b", "c")]


def write_tokenizer(folder, vocabulary=VOCABULARY, merges=MERGES, template="{{ messages }}"):
    engine = Tokenizer(BPE(vocab=dict(vocabulary), merges=list(merges)))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<eos>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
PADDING = {
    **{"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None},
    **{"pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
}
FIRST, SECOND = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
MANY_TIMES = {
    **{"type": "TemplateProcessing", "single": [FIRST] * 20_000, "pair": [FIRST, SECOND], "special_tokens": {}}
}


def tenfold(times):
    """Rules each of which makes ten of every letter a."""
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    return {"type": "Sequence", "normalizers": [rule] * times}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from tests.engine.models.conftest import network

    folder = tmp_path_factory.mktemp("saved") / "tiny"
    network("llama").save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "tiny")


def logits_of(model, tokens=(5, 9, 17)):
    cache = model.new_cache(1, 8)
    return model.forward(cache, chain_placement([list(tokens)], [0], cache.trash), WantedOutputs()).logits


def rewrite(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def edit(path, **changes):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


@pytest.mark.parametrize("loader", ["lean", "hf"])
def test_loads_a_folder(loader, saved, make_network):
    loaded = load_model("tiny", loader=loader, base=saved.parent)
    with torch.no_grad():
        expected = make_network("llama")(torch.tensor([[5, 9, 17]])).logits
    torch.testing.assert_close(logits_of(loaded.model), expected, atol=1e-4, rtol=0)
    assert loaded.model.eos_ids == (2,)
    assert loaded.tokenizer.encode("abc") == [4, 3]
    assert (loaded.source, loaded.resolved) == ("tiny", str(saved))
    facts = loaded.model.facts
    assert facts["model_sha256"] == model_digest(loaded.files)
    assert facts["tokenizer_sha256"] == tokenizer_digest(loaded.files)
    assert (facts["architecture"], facts["dtype"], facts["loader"]) == ("llama", "float32", loader)
    assert not any(str(saved) in str(value) for value in facts.values())


@pytest.mark.parametrize("loader", ["lean", "hf"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_loads_in_the_dtype_asked_for(loader, dtype, saved):
    assert logits_of(load_model(str(saved), dtype=dtype, loader=loader).model).dtype == getattr(torch, dtype)


@pytest.mark.medium
@pytest.mark.parametrize("loader", ["lean", "hf"])
@pytest.mark.parametrize(
    ("kind", "overrides"), [("qwen2", {}), ("qwen3", {}), ("llama", {"tie_word_embeddings": True})]
)
def test_saved_configurations_of_transformers_are_understood(
    loader, kind, overrides, tmp_path, make_network, largest_error
):
    network = make_network(kind, **overrides)
    network.save_pretrained(tmp_path / kind)
    loaded = load_model(kind, loader=loader, base=tmp_path)
    assert largest_error(loaded.model, network) < 1e-4
    assert loaded.tokenizer is None


def test_a_sharded_checkpoint_is_the_same_model(saved, tmp_path, make_network):
    make_network("llama").save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    whole, sharded = load_model(str(saved)), load_model(str(tmp_path / "sharded"))
    assert torch.equal(logits_of(whole.model), logits_of(sharded.model))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [({"eos_token_id": [2, 7]}, {}, (2, 7)), ({}, {"eos_token_id": 3}, (3,)), ({}, {"eos_token_id": None}, ())],
)
def test_end_ids_come_from_generation_config_first(generation, config, expected, folder):
    (folder / "generation_config.json").write_text(json.dumps(generation))
    edit(folder / "config.json", **config)
    assert load_model(str(folder)).model.eos_ids == expected


class TestMistakes:
    def refused(self, message, source, **options):
        with pytest.raises(ModelError, match=message) as caught:
            load_model(str(source), **options)
        assert "\n" not in str(caught.value)
        assert str(source) in str(caught.value)

    def test_no_folder(self, tmp_path):
        self.refused("no such folder", tmp_path / "absent")

    def test_no_config(self, folder):
        (folder / "config.json").unlink()
        self.refused("config.json is missing", folder)

    def test_broken_config(self, folder):
        (folder / "config.json").write_text("{")
        self.refused("config.json: not readable as JSON", folder)

    def test_nonsense_end_id(self, folder):
        (folder / "generation_config.json").write_text('{"eos_token_id": ["</s>"]}')
        self.refused("generation_config.json: eos_token_id must be a token id", folder)

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        self.refused("no weights; it needs model.safetensors", folder)

    @pytest.mark.parametrize("loader", ["lean", "hf"])
    def test_pickled_weights_only(self, loader, folder):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refused("pytorch_model.bin: pickled weights are not read.*save_pretrained", folder, loader=loader)

    def test_strange_weight_file(self, folder):
        (folder / "model.safetensors").rename(folder / "adapter.safetensors")
        self.refused("no model.safetensors and no model.safetensors.index.json", folder)

    def test_cut_weight_file(self, folder):
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        self.refused("model.safetensors: not readable as safetensors", folder)

    @pytest.mark.parametrize("loader", ["lean", "hf"])
    def test_missing_tensor(self, loader, folder):
        rewrite(folder / "model.safetensors", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
        self.refused(r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing", folder, loader=loader)

    @pytest.mark.parametrize("loader", ["lean", "hf"])
    def test_unexpected_tensor(self, loader, folder):
        rewrite(folder / "model.safetensors", lambda tensors: tensors.update(surplus=torch.zeros(2)))
        self.refused("tensor surplus is unexpected", folder, loader=loader)

    @pytest.mark.parametrize("loader", ["lean", "hf"])
    def test_wrong_shape(self, loader, folder, capfd):
        rewrite(folder / "model.safetensors", lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}))
        message = r"tensor model\.norm\.weight has shape \[31\], config\.json asks for \[32\]"
        self.refused(message, folder, loader=loader)
        assert capfd.readouterr() == ("", "")

    def test_unsupported_architecture(self, tmp_path, make_network):
        make_network("gpt2").save_pretrained(tmp_path / "gpt2")
        self.refused("model_type 'gpt2' has no lean forward .*use loader: hf", tmp_path / "gpt2")
        assert load_model(str(tmp_path / "gpt2"), loader="hf").model.vocabulary == 80

    def test_state_without_rollback(self, folder):
        edit(folder / "config.json", model_type="mamba2")
        self.refused("config.json: model_type 'mamba2' keeps a recurrent state", folder, loader="hf")

    def test_unknown_to_transformers(self, folder):
        edit(folder / "config.json", model_type="nonesuch")
        self.refused("transformers cannot load it as a causal language model", folder, loader="hf")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda it: it["model"]["vocab"].update(a=2**31), "the token id 2147483648 is not from 0 to 16777215"),
            (lambda it: it["added_tokens"].append({"id": 2**31, "content": "x"}), "the token id 2147483648 is not"),
            (lambda it: it["model"]["vocab"].update(a=-1), "the token id -1 is not"),
            (lambda it: it.update(normalizer=tenfold(9)), "make a text 1000000000 times as long"),
            (lambda it: it.update(decoder={"type": "Sequence", "decoders": [tenfold(4)]}), "make a text 10000 times"),
        ],
    )
    def test_a_tokenizer_that_asks_for_gigabytes(self, folder, change, message):
        document = json.loads((folder / "tokenizer.json").read_text())
        change(document)
        (folder / "tokenizer.json").write_text(json.dumps(document))
        self.refused(f"tokenizer.json: {message}" if message.startswith("the") else message, folder)

    @pytest.mark.medium
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"pre_tokenizer": SPLIT | {"pattern": {"Regex": "(a+)+$"}}}, "fails on a short text: Onig: Regex search"),
            ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "x"}}, "fails on a short"),
            ({"padding": PADDING}, "takes more than [0-9]+ MiB on a short text"),
            ({"post_processor": MANY_TIMES}, "takes more than [0-9]+ MiB on a short text"),
        ],
    )
    def test_a_tokenizer_that_no_rule_of_ours_foresees_is_built_in_a_process_with_limits(
        self, folder, change, message, capfd
    ):
        document = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(document | change))
        self.refused(f"tokenizer.json: it {message}.*; restore the file", folder)
        assert "panicked" not in capfd.readouterr().err

    def test_a_tokenizer_that_grows_a_text_a_little_is_read(self, folder):
        document = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(document | {"normalizer": tenfold(2)}))
        assert len(load_model(str(folder)).tokenizer.encode("a")) == 100

    def test_broken_tokenizer(self, folder):
        (folder / "tokenizer.json").write_text("{}")
        self.refused("the tokenizer cannot be read", folder)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "int8"}, "dtype 'int8' is not one of float32, float64, bfloat16"),
            ({"loader": "fast"}, "loader 'fast' is not one of lean, hf"),
            ({"revision": "main"}, "revision applies to hf: sources only"),
        ],
    )
    def test_options(self, options, message, folder):
        self.refused(message, folder, **options)

    def test_unknown_bundled_name(self):
        self.refused("no such bundled model; there are", "bundled:nonesuch")

    def test_bundled_name_cannot_leave_its_folder(self):
        self.refused("no such bundled model", "bundled:../models")

    def test_malformed_hub_name(self):
        self.refused("an hf: source is hf:ORG/NAME", "hf:nonesuch")


class TestShards:
    @pytest.fixture
    def sharded(self, tmp_path, make_network):
        make_network("llama").save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
        return tmp_path / "sharded"

    @pytest.fixture
    def places(self, sharded):
        return json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]

    def test_missing_shard(self, sharded, places):
        (sharded / places["model.norm.weight"]).unlink()
        with pytest.raises(ModelError, match=f"{places['model.norm.weight']}: no such file"):
            load_model(str(sharded))

    def test_tensor_not_where_the_index_says(self, sharded, places):
        rewrite(sharded / places["model.norm.weight"], lambda tensors: tensors.pop("model.norm.weight"))
        with pytest.raises(ModelError, match=r"tensor model\.norm\.weight is missing though"):
            load_model(str(sharded))

    def test_tensor_unknown_to_the_index(self, sharded, places):
        rewrite(sharded / places["model.norm.weight"], lambda tensors: tensors.update(surplus=torch.zeros(1)))
        with pytest.raises(ModelError, match="tensor surplus is here but"):
            load_model(str(sharded))

    def test_index_without_a_map(self, sharded):
        (sharded / "model.safetensors.index.json").write_text("{}")
        with pytest.raises(ModelError, match="weight_map is missing"):
            load_model(str(sharded))

    def test_index_cannot_leave_the_folder(self, sharded):
        edit(sharded / "model.safetensors.index.json", weight_map={"x": "../other.safetensors"})
        with pytest.raises(ModelError, match="no such file though"):
            load_model(str(sharded))


class TestDigests:
    def digests(self, folder):
        files = load_model(str(folder)).files
        return model_digest(files), tokenizer_digest(files)

    def test_files_carry_sha256_and_size(self, folder):
        files = {each.name: each for each in load_model(str(folder)).files}
        content = (folder / "model.safetensors").read_bytes()
        assert files["model.safetensors"].sha256 == hashlib.sha256(content).hexdigest()
        assert files["model.safetensors"].size == len(content)
        assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= set(files)

    def test_one_byte_of_the_weights(self, folder):
        model, tokenizer = self.digests(folder)
        content = bytearray((folder / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)
        changed = self.digests(folder)
        assert changed[0] != model
        assert changed[1] == tokenizer

    @pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
    def test_one_byte_of_the_configuration(self, name, folder):
        model, tokenizer = self.digests(folder)
        (folder / name).write_text((folder / name).read_text() + " ")
        changed = self.digests(folder)
        assert changed[0] != model
        assert changed[1] == tokenizer

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
    def test_one_byte_of_the_tokenizer(self, name, folder):
        model, tokenizer = self.digests(folder)
        (folder / name).write_text((folder / name).read_text() + " ")
        changed = self.digests(folder)
        assert changed[0] == model
        assert changed[1] != tokenizer

    def test_other_files_and_places_do_not_count(self, folder, tmp_path):
        before = self.digests(folder)
        (folder / "README.md").write_text("hello")
        moved = folder.rename(tmp_path / "elsewhere")
        assert self.digests(moved) == before


class TestHub:
    def test_the_commit_is_recorded(self, saved, tmp_path, monkeypatch):
        snapshot = shutil.copytree(saved, tmp_path / "snapshots" / "0123abcd")
        asked = {}

        def download(name, **options):
            asked.update(options, name=name)
            return str(snapshot)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        loaded = load_model("hf:org/tiny", revision="v1")
        assert (asked["name"], asked["revision"]) == ("org/tiny", "v1")
        assert not any("bin" in pattern for pattern in asked["allow_patterns"])
        assert loaded.resolved == "hf:org/tiny@0123abcd"
        assert loaded.model.facts["resolved"] == "hf:org/tiny@0123abcd"

    def test_offline_is_one_clear_line(self, monkeypatch):
        def download(*_, **__):
            raise LocalEntryNotFoundError("a long\nexplanation")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        with pytest.raises(ModelError, match="hf:org/tiny at main: not in the local cache") as caught:
            load_model("hf:org/tiny")
        assert "\n" not in str(caught.value)


class TestSameTokenizer:
    def pair(self, saved, folder, **changes):
        write_tokenizer(folder, **changes)
        return load_model(str(saved)), load_model(str(folder))

    def test_equal_content_is_enough(self, saved, folder):
        check_same_tokenizer(*self.pair(saved, folder, template="{{ other }}"))

    def test_same_size_other_token(self, saved, folder):
        swapped = VOCABULARY | {"a": 2, "b": 1}
        with pytest.raises(ModelError, match="token 1 is 'a' in the target and 'b' in the draft"):
            check_same_tokenizer(*self.pair(saved, folder, vocabulary=swapped))

    def test_one_token_more(self, saved, folder):
        with pytest.raises(ModelError, match="token 6 is None in the target and 'd' in the draft"):
            check_same_tokenizer(*self.pair(saved, folder, vocabulary=VOCABULARY | {"d": 6}))

    def test_other_merge_order(self, saved, folder):
        with pytest.raises(ModelError, match=r"merge 0 is \['a', 'b'\] in the target and \['b', 'c'\] in the draft"):
            check_same_tokenizer(*self.pair(saved, folder, merges=MERGES[::-1]))

    def test_no_tokenizer(self, saved, folder):
        for each in folder.glob("*token*"):
            each.unlink()
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(ModelError, match="tiny has no tokenizer files"):
            check_same_tokenizer(load_model(str(saved)), load_model(str(folder)))


class TestDevice:
    def test_it_is_among_the_facts(self, saved):
        assert load_model(str(saved)).model.facts["device"] == "cpu"

    def test_one_that_is_not_there_is_refused(self, saved):
        with pytest.raises(ModelError, match=r"device 'abacus' cannot be used on this machine .*; use cpu"):
            load_model(str(saved), device="abacus")

    def test_the_hf_loader_has_the_cpu_only(self, saved):
        with pytest.raises(ModelError, match="loader hf runs on the cpu only; write loader: lean"):
            load_model(str(saved), loader="hf", device="cuda")
