"""The training corpus: the Python standard library's sources and dialogues.

Writes one token array per split and domain, plus a manifest with digests.

The byte-level BPE of the reference family, with its chat template.
"""

import hashlib
import json
import platform
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.train import chat
from engine.train.dialogues import Dialogue, draw
from engine.train.recipe import CorpusRecipe


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a BPE of exactly `vocabulary` tokens; digits are never merged.

    Single digits keep numbers and codes copyable and arithmetic regular.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in chat.SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(chat.MARKUP_TOKENS),
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in chat.MARKUP_TOKENS])
    return wrap(tokenizer)


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The transformers tokenizer around a trained BPE."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=chat.BOS,
        eos_token=chat.EOS,
        pad_token=chat.PAD,
        additional_special_tokens=[f"<|{role}|>" for role in chat.ROLES],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = chat.TEMPLATE
    return fast


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
    texts = [item.text() for item in spoken]
    sample = ["".join(code)[:BPE_SAMPLE], "".join(texts)[:BPE_SAMPLE]]
    tokenizer = train_tokenizer(sample, recipe.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    streams = {"code": encode(tokenizer, code), "dialogue": encode(tokenizer, texts)}
    streams["held_code"] = encode(tokenizer, held_code)
    for domain in sorted({item.domain for item in held}):
        streams[f"held_{domain}"] = encode(tokenizer, [item.text() for item in held if item.domain == domain])
    for key, tokens in streams.items():
        np.save(folder / f"{key}.npy", tokens)
    written = {
        key: {"tokens": len(tokens), "sha256": hashlib.sha256(tokens.tobytes()).hexdigest()}
        for key, tokens in streams.items()
    }
    manifest = {"recipe": asdict(recipe), "python": platform.python_version(), "streams": written}
    (folder / "corpus.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> Corpus:
    """Read what `build` wrote."""
    held = {path.stem.removeprefix("held_"): np.load(path) for path in sorted(folder.glob("held_*.npy"))}
    return Corpus(np.load(folder / "code.npy"), np.load(folder / "dialogue.npy"), held)
