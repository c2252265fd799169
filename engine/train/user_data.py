"""A user's own target and text, as the trainers of heads want them.

Text is a file of one JSON object per line: {"text": ...}, or {"messages": [...]},
which goes through the target's chat template.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.core.errors import ModelError
from engine.train.corpus import Corpus
from engine.train.heads.head_layer import Teacher

HELD_OUT = 20
"""Of this many lines one is held out for measuring."""
MIXTURE = 4096
"""Fewest training tokens: a window must fit, and a step should not see the same one twice."""


def load_teacher(folder: Path) -> Teacher:
    """The frozen target in a folder, in float32."""
    return Teacher(AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True))


def load_corpus(file: Path, target: Path) -> Corpus:
    """The file's tokens by the target's tokenizer; documents end with its end token.

    Raises:
        ModelError: an invalid line, or too little text; names file and line.
    """
    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    documents = list(_documents(file, tokenizer))
    held = [tokens for number, tokens in enumerate(documents) if number % HELD_OUT == 0]
    kept = [tokens for number, tokens in enumerate(documents) if number % HELD_OUT]
    count = sum(map(len, kept))
    if count < MIXTURE:
        raise ModelError(f"{file}: {count} tokens to train on are too few; give at least {MIXTURE}")
    streams = [np.concatenate([np.asarray(tokens, np.int64) for tokens in part]) for part in (kept, held)]
    # one domain: what the bundled family draws from two streams comes from the same one here
    return Corpus(code=streams[0], dialogue=streams[0], held_out={"held_out": streams[1]})


def _documents(file: Path, tokenizer: Any) -> Iterator[list[int]]:
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield _tokens(line, f"{file}:{number}", tokenizer) + end


def _tokens(line: str, where: str, tokenizer: Any) -> list[int]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ModelError(f"{where}: not JSON ({error})") from error
    if isinstance(document, dict) and isinstance(document.get("text"), str):
        return list(tokenizer(document["text"], add_special_tokens=False)["input_ids"])
    if isinstance(document, dict) and isinstance(document.get("messages"), list):
        text = tokenizer.apply_chat_template(document["messages"], tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    raise ModelError(f'{where}: an object with "text" or "messages" is wanted')
