"""Tokens of an answer beside the lists of likely tokens that came with them.

A list contradicts its token only where no other reading is left: several tokens may have one text.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

NAMED: Final = re.compile(r"token_id:([0-9]{1,9})")
"""The form in which some servers give a token's id instead of its text."""
SAME: Final = 1e-4
"""Difference between two statements of one log-probability, as servers round what they print."""
PART: Final = "\N{REPLACEMENT CHARACTER}"
"""The text of every part of a character."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token with its log-probability.

    lead: its reported rivals' largest log-probability minus the second largest; NaN if fewer than two are reported.
    raw: its bytes, if the server gives them: one token may hold a part of a character.
    rivals: number of entries in its list of likely tokens.
    keyed: the list has one entry per text, so that it may be shorter than requested.
    behind: the largest log-probability of the list minus its own; NaN without a list.
    flaw: how the token and its list contradict each other; empty if they do not.
    """

    text: str
    logprob: float
    lead: float = math.nan
    id: int | None = None
    raw: bytes | None = None
    rivals: int = field(default=0, compare=False)
    keyed: bool = field(default=False, compare=False)
    behind: float = field(default=math.nan, compare=False)
    flaw: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Rival:
    """One entry of a token's list of likely tokens."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token with its list of likely ones, as the server wrote it.

    keyed: the list has one entry per text, so one of two tokens of one text is lost: the one that came first.
    """

    text: str
    logprob: float
    rivals: Sequence[Rival]
    own: int | None = None
    raw: bytes | None = None
    keyed: bool = False

    @property
    def most(self) -> int:
        """Entries of a keyed list, without the token's own that a server adds below the likeliest."""
        if not self.keyed:
            return 0
        return len(self.rivals) - (self.logprob <= min((item.logprob for item in self.rivals), default=math.nan))

    @property
    def parts(self) -> bool:
        """True if the list may have one entry for several parts of characters."""
        return self.keyed and any(PART in rival.text for rival in self.rivals)


def pieces_of(listed: Sequence[ListedToken], rivals: int = 0) -> tuple[Piece, ...]:
    """The tokens of an answer; `rivals` is the requested length of their lists, 0 if nobody knows it.

    A keyed list lost an entry if it is shorter than that or than others, perhaps if it has parts.
    """
    whole = max([rivals, *(token.most for token in listed)])
    return tuple(_piece(token, lost=token.parts or (token.keyed and 0 < len(token.rivals) < whole)) for token in listed)


def _piece(token: ListedToken, *, lost: bool) -> Piece:
    named, values = NAMED.fullmatch(token.text), [rival.logprob for rival in token.rivals]
    return Piece(
        token.text,
        token.logprob,
        math.nan if lost else lead_of(values),
        int(named[1]) if named else token.own,
        token.raw,
        rivals=len(token.rivals),
        keyed=token.keyed,
        behind=max(values, default=math.nan) - token.logprob,
        flaw=_flaw(token, lost=lost),
    )


def _flaw(token: ListedToken, *, lost: bool) -> str:
    """How a token contradicts its own list: a log-probability is at most 0, and a list holds its likeliest tokens.

    Several tokens may have one text, such as parts of a character or a word with and without the blank before it, so an
    entry of this text may be another token's; a token outside the list is then none of the likeliest, and in a list
    that lost an entry another token's stands in its place: a less likely one's, or a likelier one's where the token
    itself comes first.
    """
    text, logprob, rivals = token.text, token.logprob, token.rivals
    if logprob > SAME:
        return f"log-probability {logprob:.6g} of {text[:40]!r} is above 0"
    own = [rival.logprob for rival in rivals if rival.text == text]
    listed = any(abs(value - logprob) <= SAME for value in own)
    least = min((rival.logprob for rival in rivals if not math.isnan(rival.logprob)), default=math.nan)
    if listed or not logprob > least + SAME or (lost and own):
        return ""
    if own:
        return f"{text[:40]!r} has log-probability {logprob:.6g}, in its own list {own[0]:.6g}"
    return f"{text[:40]!r} is likelier than a token of its own list, which does not hold it"


def lead_of(rivals: Sequence[float]) -> float:
    """The largest log-probability of a place minus the second largest; NaN if fewer than two are given."""
    first, *rest = sorted(rivals, reverse=True) or [math.nan]
    return first - rest[0] if rest else math.nan
