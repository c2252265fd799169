"""Prompts as tokens, tokens as text, conversations as text and the bytes of tokens, by a model's own tokenizer.

A chat template may come from somebody else. It runs in the sandbox of transformers: it reaches no file and no code.
Here it also ends in time, whatever it loops over. Cannot bound: one operation that makes a huge text, which ends with
the memory.

The bytes are for grammars. Byte-level vocabularies (GPT-2's alphabet of printable stand-ins) and sentencepiece
vocabularies (`▁` for a blank, `<0x0A>` for a byte) are read; others are refused. Special tokens, and ids beyond the
tokenizer, have no bytes.
"""

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from jinja2 import TemplateError

from engine.backends.interface import Prompt, PromptTokenizer
from engine.constraints.interface import Encode, TokenSpelling
from engine.core.errors import InvalidRequest, ModelError

SECONDS: Final = 10.0
"""Time that a template may take for one conversation; real ones take milliseconds."""
FAILURES: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions of templates: their own, or of operations on values that they did not expect."""
FIX: Final = "correct its chat template, or use prompts with raw text (key prompt)"
OWNED: Final = frozenset(
    ("messages", "conversation", "tools", "tool_choice", "tokenize", "add_generation_prompt", "chat_template")
)
"""Arguments of a template that come from elsewhere."""
BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BLANK: Final = "\u2581"
PANIC: Final = "PanicException"
"""The class that pyo3 raises for a panic of Rust; it cannot be imported."""


def tokens_by(tokenizer: Any, source: str) -> PromptTokenizer:
    """A transformers tokenizer with its chat template; messages name `source`."""

    def ids(text: str, **options: Any) -> list[int]:
        with _guarded(source, "a text"):
            return list(tokenizer(text, **options)["input_ids"])

    def encode(prompt: Prompt) -> list[int]:
        if prompt.text is not None:
            return ids(prompt.text)
        if not tokenizer.chat_template:
            raise ModelError(f"{source}: no chat template; use prompts with raw text (key prompt)")
        owned = sorted(OWNED & set(prompt.template))
        if owned:
            raise InvalidRequest(f"chat_template_kwargs may not set {owned[0]}; the prompt's other keys do")
        template = {**prompt.template, **({"tools": list(prompt.tools)} if prompt.tools else {})}
        if prompt.tools and prompt.tool_choice != "auto":
            template["tool_choice"] = prompt.tool_choice
        text = chat_text(tokenizer, prompt.messages, source, add_generation_prompt=True, **template)
        return ids(text, add_special_tokens=False)

    def decode(tokens: Sequence[int]) -> str:
        with _guarded(source, "an answer"):
            return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        return chat_text(tokenizer, messages, source)

    return PromptTokenizer(
        encode,
        decode,
        getattr(tokenizer, "response_template", None),
        lambda vocabulary: spelling_of(tokenizer, vocabulary, partial(ids, add_special_tokens=False)),
        write if getattr(tokenizer, "chat_template", None) else None,
    )


@contextmanager
def _guarded(source: str, work: str) -> Iterator[None]:
    """Raises ModelError: the library panics, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{source}: its tokenizer gives up on {work} ({reason}); restore tokenizer.json") from None


class _TooSlow(Exception):
    pass


def chat_text(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], source: str, *, seconds: float = SECONDS, **options: Any
) -> str:
    """The messages as the text that the model reads; `options` go to the template.

    Raises:
        ModelError: the template raises, or does not end in time.
    """
    try:
        with _deadline(seconds):
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))
    except _TooSlow:
        raise ModelError(f"{source}: its chat template did not end within {seconds:g} s; {FIX}") from None
    except FAILURES as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"{source}: its chat template fails on a prompt: {reason}; {FIX}") from error


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise in this thread at the first line that runs after the time: a template's loops are lines of Python."""
    end, before = time.monotonic() + seconds, sys.gettrace()

    def look(_frame: FrameType, _event: str, _argument: object) -> Any:
        if time.monotonic() > end:
            raise _TooSlow
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def stand_ins() -> dict[str, int]:
    """The byte behind each character of a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


def spelling_of(tokenizer: Any, vocabulary: int, encode: Encode) -> TokenSpelling:
    """The spelling of `vocabulary` tokens, with the tokenizer's way to encode a text without special tokens.

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
    return TokenSpelling(tuple(tokens), encode)


def _decoder(tokenizer: Any) -> str:
    """`bytes` or `pieces`, by the decoder of the tokenizer's file."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.dumps(json.loads(backend.to_str())["decoder"], ensure_ascii=False) if backend is not None else ""
    if '"ByteLevel"' in decoder:
        return "bytes"
    if '"ByteFallback"' in decoder or BLANK in decoder:
        return "pieces"
    raise InvalidRequest("structured: the tokenizer is neither byte-level nor sentencepiece; use another model")
