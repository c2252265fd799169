"""Run identifiers: ULIDs, 26 characters that sort by time of creation.

48 bits of Unix time in milliseconds, then 80 random bits, in Crockford's base 32 (https://github.com/ulid/spec).
"""

import secrets
import time
from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH: Final = 26


def new_ulid() -> str:
    """A fresh identifier from the clock and the system's randomness."""
    return encode_ulid(time.time_ns() // 1_000_000, secrets.randbits(80))


def encode_ulid(milliseconds: int, randomness: int) -> str:
    """The 26 characters of a time and 80 random bits. Raises ValueError: a part does not fit its bits."""
    if not (0 <= milliseconds < 2**48 and 0 <= randomness < 2**80):
        raise ValueError("a ULID has 48 bits of time and 80 random bits")
    number = milliseconds << 80 | randomness
    return "".join(ALPHABET[number >> 5 * i & 31] for i in reversed(range(LENGTH)))


def time_of(ulid: str) -> int | None:
    """The Unix time in milliseconds of an identifier; None for a text that is not one."""
    if len(ulid) != LENGTH or not set(ulid) <= set(ALPHABET):
        return None
    number = 0
    for letter in ulid:
        number = number << 5 | ALPHABET.index(letter)
    return number >> 80
