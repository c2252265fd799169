"""Badges: a run's conclusion, or the share of drafted tokens that was accepted, as a small SVG."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree

from audit.evidence.records import ArmKind
from audit.store import StoredRun

HEIGHT: Final = 20
CHARACTER: Final = 7
"""Width of a character; the text is fitted to it, so that no font is measured."""
MARGIN: Final = 8
NAMED: Final = "#24292f"
GREEN, RED, AMBER, GREY = "#1a7f37", "#b42318", "#8a5a00", "#57606a"
"""Colours with a contrast of at least 4.5 to the white text on them."""


class BadgeSubject(StrEnum):
    """Subject of a badge."""

    VERDICT = "verdict"
    ACCEPTANCE = "acceptance"


@dataclass(frozen=True, slots=True)
class Badge:
    """A name, its value, and the value's colour."""

    name: str
    value: str
    colour: str


VERDICTS: Final[Mapping[int | None, Badge]] = {
    0: Badge("speculation", "certified", GREEN),
    1: Badge("speculation", "fault", RED),
    3: Badge("speculation", "undecided", AMBER),
    None: Badge("speculation", "unfinished", GREY),
}
"""By exit code of the run."""


def badge_of(run: StoredRun, subject: BadgeSubject) -> Badge:
    """The badge of a run. Acceptance is token-weighted over the candidates that count their drafted tokens."""
    if subject is BadgeSubject.VERDICT:
        return VERDICTS.get(run.exit_code, VERDICTS[None])
    counts = [arm.counts for arm in run.arms if arm.kind is ArmKind.CANDIDATE and arm.counts.accepted is not None]
    drafted = sum(count.drafted or 0 for count in counts)
    accepted = sum(count.accepted or 0 for count in counts)
    return Badge("acceptance", f"{100 * accepted / drafted:.1f} %" if drafted else "unknown", GREY)


def svg(badge: Badge) -> str:
    """The badge as SVG: two boxes with their text, and the same words for a screen reader."""
    widths = [2 * MARGIN + CHARACTER * len(text) for text in (badge.name, badge.value)]
    label = f"{badge.name}: {badge.value}"
    root = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "width": str(sum(widths)), "height": str(HEIGHT), "role": "img"}
    )
    root.set("aria-label", label)
    ElementTree.SubElement(root, "title").text = label
    left = 0
    for text, colour, width in zip((badge.name, badge.value), (NAMED, badge.colour), widths, strict=True):
        box = {"x": str(left), "width": str(width), "height": str(HEIGHT), "fill": colour}
        ElementTree.SubElement(root, "rect", box)
        place = {"x": str(left + MARGIN), "y": "14", "textLength": str(width - 2 * MARGIN)}
        style = {"fill": "#fff", "font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"}
        ElementTree.SubElement(root, "text", place | style).text = text
        left += width
    return ElementTree.tostring(root, encoding="unicode")
