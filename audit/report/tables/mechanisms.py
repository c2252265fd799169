"""The mechanism that best explains a broken law, in words: the leading alternative of those that its test bets on."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from audit.evidence.verdicts import Verdict
from audit.store import StoredCheck

MECHANISMS: Final[Mapping[str, str]] = {
    "draft leak": "drafted tokens were kept more often than min(1, p / q) allows",
    "p to the power": "tokens were drawn at another temperature",
    "argmax leak": "the most likely token was taken where one is to be drawn",
    "argmax loss": "the most likely token was passed over, as by a correction that is not normalised",
    "repeat of the previous token": "tokens were emitted twice",
    "previous row": "tokens were drawn from the row before theirs",
    "refused draft token": "drafted tokens were emitted after they had been refused",
    "copy": "tokens copied from the text were kept unverified",
    "any token": "tokens were drawn from damaged rows",
    "without": "temperature, truncation, penalties or bias were not applied everywhere",
}
"""By words of an alternative's name."""
LEADS: Final = 0.5
"""Share of the evidence from which on one alternative explains it better than all others together."""
SURE: Final = math.log(1000)
"""The log e-value of an alternative against the target's law that is worth a line."""


def mechanism_lines(checks: Iterable[StoredCheck]) -> Iterator[str]:
    """One line for each check of a law that is broken in a way that one alternative explains."""
    for check in checks:
        leaders = check.details.get("alternatives") if check.verdict is Verdict.FAULT else None
        if leaders and leaders[0]["share"] >= LEADS and leaders[0].get("log_e", 0.0) >= SURE:
            yield f"{check.arm}: {check.check}: as if {mechanism_of(leaders[0]['name'])}"


def mechanism_of(alternative: str) -> str:
    """The alternative of that name in words, with its places."""
    place, _, kind = alternative.rpartition(": ")
    words = next((text for name, text in MECHANISMS.items() if name in kind), kind)
    return f"{words} ({place})" if place else words
