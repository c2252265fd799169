"""Conversations as text, by a tokenizer's own chat template, which may come from somebody else.

The template runs in the sandbox of transformers: it reaches no file and no code. Here it also ends in time, whatever it
loops over. Cannot bound: one operation that makes a huge text, which ends with the memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from jinja2 import TemplateError

from engine.core.errors import ModelError

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

    def look(frame: FrameType, event: str, argument: object) -> Any:
        del frame, event, argument
        if time.monotonic() > end:
            raise _TooSlow
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
