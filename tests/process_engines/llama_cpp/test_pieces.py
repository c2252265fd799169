"""Pieces of SentencePiece in a GGUF file: llama.cpp and the folder of the file make the same tokens of a text."""

import json
import random
import urllib.request

import pytest
from transformers import AutoTokenizer

from engine.models.files.gguf_file import folder_of
from tests.engine.models.files.gguf_files import PIECES, copy_with, write_folder
from tests.process_engines.llama_cpp.serve import serving

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("prefixed", [True, False])
def test_texts_have_llama_cpps_tokens(tmp_path, monkeypatch, prefixed):
    from engine.backends.llama_cpp.build import build

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_folder(tmp_path / "made", "llama", "gpt-2", tied=False)
    build(tmp_path / "made", tmp_path / "gguf")
    fields = {**PIECES, "tokenizer.ggml.add_space_prefix": prefixed}
    file = copy_with(tmp_path / "gguf" / "model.gguf", tmp_path / "pieces.gguf", fields)
    tokenizer = AutoTokenizer.from_pretrained(folder_of(file, "it").path)
    parts, generator = [*"the r\u2581a\u00e9\U0001f642\n", "</s>", "<tool>", "<s>"], random.Random(5)
    texts = ["".join(generator.choices(parts, k=generator.randrange(1, 30))) for _ in range(200)]
    with serving(tmp_path, file) as address:
        for text in texts:
            asked = {"content": text, "add_special": False, "parse_special": True}
            request = urllib.request.Request(f"{address}/tokenize", json.dumps(asked).encode())
            with urllib.request.urlopen(request) as answer:
                told = json.load(answer)["tokens"]
            assert tokenizer.encode(text, add_special_tokens=False) == told, text
