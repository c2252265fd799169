"""The tokenizer that a GGUF file states, written as files of a model folder.

The tokenizer is byte-level BPE, or the pieces of SentencePiece. Pieces have scores in place of merges: of all
neighbours that make a piece together, those of the highest score join first, and characters that are no piece become
bytes. As in llama.cpp a space stands before each text between tokens that are matched whole; published tokenizers may
have one at the beginning only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.core.errors import ModelError
from engine.models.files.gguf_format import CONTROL, NO_MERGE, SPLITS, UNUSED, USER_DEFINED

ALIASES: Final = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
SPACE: Final = "\u2581"
"""Stands for a space in pieces."""
BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer that a file's fields state. Raises ModelError: it is of a kind that is not read."""
    from transformers import PreTrainedTokenizerFast

    own = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    if own.get("model") not in KINDS:
        raise ModelError(f"a tokenizer of kind {own.get('model')}, where only {' and '.join(KINDS)} are read")
    tokenizer = KINDS[own["model"]](own)
    tokens, kinds = own["tokens"], own["token_type"]
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL)])
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {ours: own.get(f"{theirs}_token_id") for ours, theirs in names.items()}
    special = {f"{name}_token": tokens[at] for name, at in ids.items() if at is not None}
    # as llama.cpp decides where the file does not say it
    begins = own.get("add_bos_token", own["model"] == "llama" or _split_of(own) == "llama-bpe")
    if begins and ids["bos"] is not None:
        first = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1", special_tokens=[(first, ids["bos"])]
        )
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    whole.chat_template = fields.get("tokenizer.chat_template")
    whole.save_pretrained(folder)


def _byte_level(own: Mapping[str, Any]) -> Tokenizer:
    split, numbered = _split_of(own), enumerate(zip(own["tokens"], own["token_type"], strict=True))
    vocabulary = {token: at for at, (token, kind) in numbered if kind != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in own.get("merges", ()) if merge != NO_MERGE]
    # a vocabulary of Llama 3 has words that no merges make
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split == "llama-bpe"))
    if split == "qwen2":
        # llama.cpp leaves it out, the published tokenizers with this split have it
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(split)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(own: Mapping[str, Any]) -> Tokenizer:
    tokens, scores = own["tokens"], own["scores"]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    if own.get("precompiled_charsmap") or not vocabulary.keys() >= BYTES:
        raise ModelError("pieces with a table of characters, or without all bytes, are not read")
    parts = [(at, token[:cut], token[cut:]) for token, at in vocabulary.items() for cut in range(1, len(token))]
    joined = [(at, left, right) for at, left, right in parts if left in vocabulary and right in vocabulary]
    merges = [(left, right) for _, left, right in sorted(joined, key=lambda part: -scores[part[0]])]
    unknown = own.get("unknown_token_id")
    unknown = None if unknown is None else tokens[unknown]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = own.get("add_space_prefix", True)
    first = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if prefixed else []
    whole = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*whole, *last])
    return tokenizer


KINDS: Final = {"gpt2": _byte_level, "llama": _pieces}
"""By llama.cpp's name."""


def _split_of(own: Mapping[str, Any]) -> str:
    return ALIASES.get(str(own.get("pre")), str(own.get("pre")))


def _splitter(split: str) -> pre_tokenizers.PreTokenizer:
    first: dict[str, list[pre_tokenizers.PreTokenizer]] = {
        **{name: [pre_tokenizers.Split(Regex(text), "isolated")] for text, name in SPLITS.items()},
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "gpt-2": [],
    }
    if split not in first:
        raise ModelError(f"the way to split a text {split} is not known")
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split not in SPLITS.values())
    return pre_tokenizers.Sequence([*first[split], last])
