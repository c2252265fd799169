"""GGUF files of tiny models: made from a folder, or copied with changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from engine.models.files.gguf_format import SPLITS
from tests.engine.models.conftest import network

SPECIAL = ("<|im_end|>", "<|begin|>", "<|endoftext|>", "<|im_start|>")
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


SPACE = "\u2581"
JOINED = ("th", "er", "he", f"{SPACE}t", f"{SPACE}th", "the", f"{SPACE}the", "ther", "there", f"{SPACE}there", "re")
"""In the order in which SentencePiece learned them: a longer piece may have a higher score than a part of it."""
FIRST = ("<unk>", "<s>", "</s>", "<tool>", *(f"<0x{byte:02X}>" for byte in range(256)))
TOKENS = [*FIRST, *JOINED, SPACE, *"ther", *(f"[{at}]" for at in range(320 - len(FIRST) - len(JOINED) - 5))]
SCORES = {piece: -float(rank) for rank, piece in enumerate(JOINED)}
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [SCORES.get(token, -1000.0) for token in TOKENS],
    "tokenizer.ggml.token_type": [2, 3, 3, 4, *[6] * 256, *[1] * (len(TOKENS) - 260)],
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": None,
}
"""Fields of a tokenizer of SentencePiece with 320 tokens."""


def joined(text: str, prefix: str = SPACE) -> list[int]:
    """The tokens of a text by the definition: of all neighbours that make a piece, the best score joins, leftmost."""
    symbols = list(prefix + text.replace(" ", SPACE)) if text else []
    while True:
        made = [left + right for left, right in pairwise(symbols)]
        pairs = [(SCORES[piece], -at) for at, piece in enumerate(made) if piece in SCORES]
        if not pairs:
            break
        at = -max(pairs)[1]
        symbols[at : at + 2] = [made[at]]
    spelled = [[piece] if piece in TOKENS else [f"<0x{byte:02X}>" for byte in piece.encode()] for piece in symbols]
    return [TOKENS.index(token) for tokens in spelled for token in tokens]


def write_folder(folder: Path, kind: str, split: str, *, tied: bool, begins: bool = False) -> None:
    """A random model of two layers with a byte-level tokenizer."""
    small = {"vocab_size": 320, "num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 256}
    built = network(kind, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=0, **small)
    built.generation_config.eos_token_id = [0, 2]
    built.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("the", "r"), ("ther", "e"), ("1", "2"), ("Ã", "©")]
    # the last is a word that no merges make
    tokens = [*SPECIAL, *alphabet, *("".join(pair) for pair in merges), "Ġend"]
    engine = Tokenizer(
        models.BPE({token: at for at, token in enumerate(tokens)}, merges, ignore_merges=split == "llama-bpe")
    )
    engine.normalizer = normalizers.NFC() if split == "qwen2" else None
    engine.pre_tokenizer = splitter(split)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    engine.add_tokens([AddedToken("<tool>", normalized=False)])
    if begins:
        engine.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, bos_token="<|begin|>", eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def splitter(split: str) -> pre_tokenizers.PreTokenizer:
    if split == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    first = (
        pre_tokenizers.Digits(individual_digits=True)
        if split == "smollm"
        else pre_tokenizers.Split(Regex(next(text for text, name in SPLITS.items() if name == split)), "isolated")
    )
    return pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "smollm")]
    )


def copy_with(file: Path, out: Path, fields=(), tensors=(), kind=None) -> Path:
    """A copy: `fields` by key and `tensors` by name replace those that are there, None removes; `kind` quantises."""
    import gguf

    reader, fields, tensors = gguf.GGUFReader(file), dict(fields), dict(tensors)
    family = fields.get("general.architecture", reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, family)
    for name, field in reader.fields.items():
        if name in fields or name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    for name, value in fields.items():
        if name != "general.architecture" and value is not None:
            # llama.cpp takes no signed number
            stored = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(name, value, stored)
    wanted = {item.name: item.data for item in reader.tensors} | tensors
    for name, data in wanted.items():
        if data is not None and kind is not None and data.ndim == 2 and data.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(np.array(data), kind), raw_dtype=kind)
        elif data is not None:
            writer.add_tensor(name, np.array(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
