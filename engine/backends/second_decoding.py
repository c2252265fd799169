"""The text of an answer, decoded a second time: from its tokens alone, apart from the engine that wrote it.

An engine that streams decodes token by token, with the prompt before the first one, and holds back a character that
the last tokens leave incomplete. This module decodes all tokens at once, behind the same prompt, with the tokenizer's
own `decode` and without its clean-up of blanks, which such engines leave out. It cannot see a tokenizer that decodes
wrongly both times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.stream.holding import INCOMPLETE

NO_DECODING: Final = "the target has no tokenizer, or the prompt ends inside a character"


@dataclass(frozen=True, slots=True)
class SecondDecoding:
    """The text, and the number of characters at its end that an engine may leave out."""

    text: str
    held: int = 0

    def facts(self) -> dict[str, Any]:
        """The facts of a request, as check `text` reads them."""
        return {"decoded": self.text, **({"decoding": {"held": self.held}} if self.held else {})}


def undecoded(reason: str) -> dict[str, Any]:
    """The facts of a request whose text has one account only."""
    return {"undecoded": reason}


def decode_after(
    tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int], *, special: bool = False
) -> SecondDecoding | None:
    """Text that `tokens` add to `prompt`; with `special` also the special tokens among them.

    None if the prompt ends inside a character. `held` counts the characters of the last tokens that only end in an
    incomplete character.
    """

    def text_of(count: int) -> str:
        ids = [*prompt, *tokens[:count]]
        return str(
            tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False) if ids else ""
        )

    before, whole = text_of(0), text_of(len(tokens))
    if before.endswith(INCOMPLETE) or not whole.startswith(before):
        return None
    sure, count = whole, len(tokens)
    while sure.endswith(INCOMPLETE) and count:
        count -= 1
        sure = text_of(count)
    return SecondDecoding(whole[len(before) :], len(whole) - len(sure))
