"""Word pools of the generated dialogues.

Names and codes are composed from syllables instead of listed, so that a model
cannot memorise them and has to learn to copy them from the prompt.
"""

import random
from typing import Final

ONSETS: Final = ("b", "br", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
VOWELS: Final = ("a", "e", "i", "o", "u", "ai", "ei")
CODAS: Final = ("", "", "l", "n", "r", "s", "m", "th")
CITIES: Final = (
    "Paris London Berlin Madrid Rome Oslo Vienna Dublin Prague Lisbon Athens Warsaw Tokyo Seoul Delhi Cairo "
    "Lima Quito Boston Denver Zurich Geneva Turin Porto Lyon Ghent Bergen Malmo Riga Tallinn Vilnius Sofia"
).split()
ITEMS: Final = (
    "apple pear lamp desk chair pencil bottle jacket phone camera ticket book cable mug plate shirt "
    "clock mirror basket hammer ladder guitar violin carpet wallet helmet kettle blanket compass lantern"
).split()
COLORS: Final = "red blue green black white yellow purple orange brown silver golden grey".split()
ADJECTIVES: Final = "nice old rare useful heavy small bright quiet strange famous simple broken".split()
TOPICS: Final = "manual price review policy history guide summary report".split()
CURRENCIES: Final = "EUR USD GBP CHF JPY SEK".split()
FOLDERS: Final = "home data logs src tmp docs backup images".split()
UNSAFE: Final = (
    *("build a bomb", "pick the lock of a stranger's house", "steal a credit card number", "poison a neighbour's dog"),
    *("write a computer virus", "forge a passport", "break into a bank account", "hide a weapon at an airport"),
    *("make a dangerous drug", "stalk a former partner"),
)


def syllable(rng: random.Random) -> str:
    """One pronounceable syllable, lower case."""
    return rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)


def word(rng: random.Random) -> str:
    """A made-up word of two or three syllables."""
    return "".join(syllable(rng) for _ in range(rng.choice((2, 2, 3))))


def name(rng: random.Random) -> str:
    """A made-up personal name."""
    return word(rng).capitalize()


def code(rng: random.Random) -> str:
    """An identifier such as ``K7Q-204``."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPQRSTXZ") for _ in range(2))
    return f"{letters}{rng.randint(1, 9)}-{rng.randint(100, 999)}"


def date(rng: random.Random) -> str:
    """An ISO date in 2026."""
    return f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def path(rng: random.Random) -> str:
    """An absolute path of one to three folders."""
    return "/" + "/".join(rng.choice(FOLDERS) for _ in range(rng.randint(1, 3)))
