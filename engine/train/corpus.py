"""The training corpus: the Python standard library's sources and dialogues.

Writes one token array per split and domain, plus a manifest with digests.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from engine.train import chat
from engine.train.dialogues import Dialogue, draw
from engine.train.recipe import CorpusRecipe
from engine.train.tokenizer import train_tokenizer

Tokens = NDArray[np.uint16]
SKIPPED_FOLDERS = ("site-packages", "test", "tests", "idlelib", "encodings", "pydoc_data", "lib2to3", "ensurepip")
LARGEST_FILE = 200_000
BPE_SAMPLE = 3_000_000
BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token streams of the two training parts and of the held-out domains."""

    code: Tokens
    dialogue: Tokens
    held_out: dict[str, Tokens]


def most_frequent(weights: NDArray[np.int64 | np.float64], count: int) -> NDArray[np.int64]:
    """The `count` token ids of the largest weights [V], ascending; of equal ones the lower ids."""
    return np.sort(np.argsort(-weights, kind="stable")[:count])


def standard_library() -> list[str]:
    """One document per source file of the running Python, in path order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if any(part in SKIPPED_FOLDERS for part in relative.parts) or path.stat().st_size > LARGEST_FILE:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        documents.append(f"{chat.BOS}# file: {relative.as_posix()}\n{text}{chat.EOS}")
    return documents


def dialogues(count: int, rng: random.Random) -> list[Dialogue]:
    """`count` dialogues from the mixture."""
    return [draw(rng) for _ in range(count)]


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Tokens:
    """All texts as one token stream."""
    return np.concatenate(list(_encoded(tokenizer, texts)))


def _encoded(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Iterator[Tokens]:
    for start in range(0, len(texts), BATCH):
        for ids in tokenizer(list(texts[start : start + BATCH]), add_special_tokens=False)["input_ids"]:
            yield np.asarray(ids, dtype=np.uint16)


def build(recipe: CorpusRecipe, folder: Path) -> None:
    """Write tokenizer, token streams and manifest to `folder`."""
    rng = random.Random(recipe.seed)
    code = standard_library()
    rng.shuffle(code)
    held_code, code = code[: recipe.held_out_files], code[recipe.held_out_files :]
    spoken = dialogues(recipe.dialogues, rng)
    held = dialogues(recipe.held_out_dialogues, random.Random(recipe.seed + 1))
    texts = [each.text() for each in spoken]
    sample = ["".join(code)[:BPE_SAMPLE], "".join(texts)[:BPE_SAMPLE]]
    tokenizer = train_tokenizer(sample, recipe.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    streams = {"code": encode(tokenizer, code), "dialogue": encode(tokenizer, texts)}
    streams["held_code"] = encode(tokenizer, held_code)
    for domain in sorted({each.domain for each in held}):
        streams[f"held_{domain}"] = encode(tokenizer, [each.text() for each in held if each.domain == domain])
    for key, tokens in streams.items():
        np.save(folder / f"{key}.npy", tokens)
    manifest = {"recipe": asdict(recipe), "python": platform.python_version(), "streams": _describe(streams)}
    (folder / "corpus.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _describe(streams: dict[str, Tokens]) -> dict[str, dict[str, int | str]]:
    return {
        key: {"tokens": len(tokens), "sha256": hashlib.sha256(tokens.tobytes()).hexdigest()}
        for key, tokens in streams.items()
    }


def load(folder: Path) -> Corpus:
    """Read what `build` wrote."""
    held = {path.stem.removeprefix("held_"): np.load(path) for path in sorted(folder.glob("held_*.npy"))}
    return Corpus(np.load(folder / "code.npy"), np.load(folder / "dialogue.npy"), held)
