"""An API key, and its removal from everything that a server says.

A server can say the key back in other spellings: JSON, percent and HTML escapes, also nested, base64 and hexadecimal,
or cut into tokens. Escapes are matched character by character, so a mixture of spellings is found too. A server that
ciphers the key otherwise is not caught: it has the key anyway, and then hides it in its own words.
"""

import base64
import html.entities
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SHORTEST: Final = 8
"""Shorter keys are placeholders such as EMPTY and may occur in ordinary text."""
ENTITIES: Final[Mapping[str, tuple[str, ...]]] = {
    char: tuple(name.rstrip(";") for name, value in html.entities.html5.items() if value == char and name[-1] == ";")
    for char in map(chr, range(0x21, 0x7F))
}


@dataclass(frozen=True, slots=True)
class Secret:
    """The spellings of a key (`secret_of`); None without one. They are not shown where a value is printed."""

    pattern: re.Pattern[str] | None = field(default=None, repr=False)

    def clean(self, text: str) -> str:
        """The text with every spelling of the key masked."""
        return text if self.pattern is None else self.pattern.sub("***", text)

    def within(self, text: str) -> bool:
        """True if the text holds a spelling of the key."""
        return self.pattern is not None and self.pattern.search(text) is not None

    def cleaned(self, document: Any) -> Any:
        """A JSON document with the key masked in its decoded texts and keys."""
        if isinstance(document, str):
            return self.clean(document)
        if isinstance(document, Mapping):
            return {self.clean(key): self.cleaned(value) for key, value in document.items()}
        return [self.cleaned(item) for item in document] if isinstance(document, list) else document


def secret_of(key: str) -> Secret:
    """The spellings of a key; of none for a placeholder."""
    if len(key) < SHORTEST:
        return Secret()
    spelled = "".join(map(_spellings, key))
    return Secret(re.compile("|".join((spelled, *map(re.escape, _encoded(key))))))


def _spellings(char: str) -> str:
    """One character as it is, or as an escape of JSON, of an address, or of HTML; escapes may be escaped again."""
    code = ord(char)
    hexed = "".join(f"[{digit.upper()}{digit}]" for digit in f"{code:02x}")
    named = "|".join(map(re.escape, ENTITIES.get(char, ())))
    escaped = "|".join((f"u00{hexed}", f"x{hexed}", re.escape(char)))
    in_html = "|".join((f"#0{{0,6}}{code};?", f"#[xX]0{{0,6}}{hexed};?", *([f"(?:{named});"] if named else [])))
    amp = "&(?:amp;|#38;|#[xX]26;){0,4}"
    # bounds on repetition keep the search linear in the text
    return rf"(?:{re.escape(char)}|\\{{1,8}}(?:{escaped})|%(?:25){{0,4}}{hexed}|{amp}(?:{in_html}))"


def _encoded(key: str) -> Iterator[str]:
    """The key in base64, at each of the three offsets that text before it can give it, and in hexadecimal."""
    raw = key.encode()
    for before in range(3):
        whole = b"\0" * before + raw
        # characters that the text before and after the key would change are left out
        first, last = (before * 8 + 5) // 6, len(whole) * 8 // 6
        for coded in (base64.b64encode(whole), base64.urlsafe_b64encode(whole)):
            yield coded[first:last].decode()
    yield from (raw.hex(), raw.hex().upper())
