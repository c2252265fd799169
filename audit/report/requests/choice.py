"""Which requests a page shows one by one: a page about a run of any size stays small, and says what it leaves out."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from audit.store import RequestKey, StoredCheck
from engine.core.sequences import grouped


@dataclass(frozen=True, slots=True)
class Choice:
    """Chosen requests in the order of the page; the first `named` of them have a finding.

    of: all requests. of_named: all of them with a finding.
    """

    keys: tuple[RequestKey, ...]
    named: int
    of: int
    of_named: int

    @property
    def left_out(self) -> int:
        """Number of requests that the page does not show."""
        return self.of - len(self.keys)

    @property
    def rule(self) -> str:
        """The rule and its effect, in one or two sentences."""
        if not self.left_out:
            return "There is one, and it is shown." if self.of == 1 else f"All {self.of} are shown."
        first = (
            f"{self.named} of {self.of_named} with a finding come first, those of faults before others"
            if self.of_named
            else "None of them has a finding"
        )
        return (
            f"{len(self.keys)} of {self.of} requests are shown, and {self.left_out} are left out. {first}; the rest "
            "are those whose names ARM/CASE#SAMPLE have the smallest SHA-256, whatever they contain. Arms take turns."
        )


def chosen(
    keys: Iterable[RequestKey], findings: Collection[str], *, most: int, most_named: int, of: int | None = None
) -> Choice:
    """At most `most` requests: at most `most_named` that `findings` name, then others.

    `findings` are names ARM/CASE#SAMPLE, the most important first. `of` is the number of all requests, if `keys` are
    only those that can be chosen.
    """
    by_name = {key.name: key for key in keys}
    named = [by_name[name] for name in dict.fromkeys(findings) if name in by_name]
    others = sorted((key for name, key in by_name.items() if name not in set(findings)), key=_digest)
    first = list(_in_turn(named))[:most_named]
    rest = list(_in_turn(sorted(others, key=lambda key: key.arm)))[: most - len(first)]
    return Choice((*first, *rest), len(first), len(by_name) if of is None else of, len(named))


def _in_turn(keys: Iterable[RequestKey]) -> Iterator[RequestKey]:
    """The first request of every arm, then the second ones, and so on; arms in the order of their first request."""
    for rank in zip_longest(*grouped((key.arm, key) for key in keys).values()):
        yield from (key for key in rank if key is not None)


def _digest(key: RequestKey) -> bytes:
    return hashlib.sha256(key.name.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class NamedFinding:
    """A finding with its check."""

    check: str
    step: int
    message: str


def findings_by_request(checks: Iterable[StoredCheck]) -> Mapping[str, tuple[NamedFinding, ...]]:
    """The findings by request, those of faults first, else in the order of arms and checks."""
    ordered = sorted(checks, key=lambda check: check.verdict != "fault")
    mapping: dict[str, tuple[NamedFinding, ...]] = {}
    for check in ordered:
        for finding in check.findings:
            named = NamedFinding(check.check, finding.step, finding.message)
            mapping[finding.request] = (*mapping.get(finding.request, ()), named)
    return mapping
