"""The corpus: same recipe, same bytes; nothing held out is trained on."""

import hashlib
import json
import random

import numpy as np
from transformers import PreTrainedTokenizerFast

from engine.train import chat, corpus, prompts
from engine.train.dialogues import draw

from .conftest import RECIPE, documents


def test_a_recipe_gives_the_same_files_again(built):
    names = sorted(path.relative_to(built / "first") for path in (built / "first").rglob("*") if path.is_file())
    assert any(name.name == "tokenizer.json" for name in names)
    for name in names:
        assert (built / "first" / name).read_bytes() == (built / "second" / name).read_bytes(), name


def test_the_manifest_describes_every_stream(built):
    manifest = json.loads((built / "first" / "corpus.json").read_text())
    assert manifest["recipe"]["vocabulary"] == RECIPE.vocabulary
    streams = {path.stem: np.load(path) for path in (built / "first").glob("*.npy")}
    assert set(manifest["streams"]) == set(streams)
    for name, tokens in streams.items():
        assert manifest["streams"][name] == {
            "tokens": len(tokens),
            "sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
        }
        assert tokens.dtype == np.uint16
        assert tokens.max() < RECIPE.vocabulary


def test_streams_are_whole_documents_in_the_chat_format(built, tiny):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(built / "first" / "tokenizer")
    code = tokenizer.decode(tiny.code.tolist())
    assert sorted(code.split(chat.BOS)[1:]) == sorted(
        document.removeprefix(chat.BOS) for document in documents() if document in code
    )
    spoken = tokenizer.decode(tiny.dialogue.tolist())
    assert spoken.count(chat.BOS) == RECIPE.dialogues
    assert spoken.startswith(chat.BOS)


def test_held_out_files_are_not_trained_on(built, tiny):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(built / "first" / "tokenizer")
    held, code = (tokenizer.decode(tokens.tolist()) for tokens in (tiny.held_out["code"], tiny.code))
    assert held in documents()
    assert held not in code
    assert code.count(chat.BOS) == len(documents()) - RECIPE.held_out_files


def test_every_domain_is_held_out(tiny):
    assert set(tiny.held_out) == {*prompts.DOMAINS, "code"}


def test_held_out_dialogues_come_from_another_seed():
    train, held = (
        {dialogue.text() for dialogue in corpus.dialogues(300, random.Random(seed))}
        for seed in (RECIPE.seed, RECIPE.seed + 1)
    )
    # refusals come from a small pool, so a few coincide; made-up names and codes do not
    assert len(train & held) < 0.1 * len(held)
    assert draw(random.Random(1)) == draw(random.Random(1))


def test_the_standard_library_is_read_in_order_and_without_tests(tmp_path, monkeypatch):
    sources = {"zip.py": "z = 1\n", "json/decoder.py": "d = 2\n", "json/__init__.py": "", "abc.py": "caf\xe9 = b\n"}
    skipped = ("test/a.py", "json/tests/b.py", "site-packages/c/d.py", "notes.txt")
    for name, text in sources.items() | {(name, "no") for name in skipped}:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))  # one byte that is not UTF-8
    (tmp_path / "large.py").write_text("#" * (corpus.LARGEST_FILE + 1))
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    shown = dict(sources) | {"abc.py": "caf\ufffd = b\n"}
    assert corpus.standard_library() == [
        f"{chat.BOS}# file: {name}\n{shown[name]}{chat.EOS}"
        for name in ("abc.py", "json/__init__.py", "json/decoder.py", "zip.py")
    ]
