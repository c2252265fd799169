"""The bytes of every token of a transformers tokenizer, for grammars.

Byte-level vocabularies (GPT-2's alphabet of printable stand-ins) and sentencepiece vocabularies (`▁` for a blank,
`<0x0A>` for a byte) are read; others are refused. Special tokens, and ids beyond the tokenizer, have no bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from engine.constraints.interface import TokenSpelling
from engine.core.errors import InvalidRequest

BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BLANK: Final = "\u2581"


def stand_ins() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


def spelling_of(tokenizer: Any, vocabulary: int) -> TokenSpelling:
    """The spelling of `vocabulary` tokens.

    Raises:
        InvalidRequest: the tokenizer's kind is not known.
    """
    kind = _decoder(tokenizer)
    letters = stand_ins()
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}
    tokens = [b""] * vocabulary
    for text, number in tokenizer.get_vocab().items():
        if number >= vocabulary or number in special:
            continue
        if number in added:
            tokens[number] = str(added[number].content).encode()
        elif kind == "bytes":
            tokens[number] = bytes(letters[letter] for letter in text)
        else:
            byte = BYTE.fullmatch(text)
            tokens[number] = bytes([int(byte[1], 16)]) if byte else text.replace(BLANK, " ").encode()
    return TokenSpelling(tuple(tokens), lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _decoder(tokenizer: Any) -> str:
    """`bytes` or `pieces`, by the decoder of the tokenizer's file."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.dumps(json.loads(backend.to_str())["decoder"], ensure_ascii=False) if backend is not None else ""
    if '"ByteLevel"' in decoder:
        return "bytes"
    if '"ByteFallback"' in decoder or BLANK in decoder:
        return "pieces"
    raise InvalidRequest("structured: the tokenizer is neither byte-level nor sentencepiece; use another model")
