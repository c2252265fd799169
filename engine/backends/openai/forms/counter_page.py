"""A server's page of counters, at the first of its addresses that answers.

TensorRT-LLM's `/metrics` is JSON: the statistics of each iteration since the last reading, which takes them away. Their
sums over all readings are written as the counters of its page for Prometheus, which has the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.backends.openai.documents import parse

SUMMED: Final[Mapping[str, str]] = {
    "numDraftTokens": "trtllm_spec_decode_num_draft_tokens_total",
    "numAcceptedTokens": "trtllm_spec_decode_num_accepted_tokens_total",
}
"""Statistics of an iteration's drafts, and the counter of each."""
ITERATIONS: Final = "# sums of the statistics of iterations"
"""First line of a page that was JSON."""


@dataclass(slots=True)
class CounterPage:
    """The page, with the sums so far; `get` gives a page, None where there is none."""

    get: Callable[[str], str | None]
    addresses: tuple[str, ...]
    sums: dict[str, int] = field(default_factory=dict)

    def read(self) -> str:
        """The page now; empty if none answers."""
        for address in self.addresses:
            page = self.get(address)
            if page is not None:
                return self._summed(page) if page.lstrip()[:1] == "[" else page
        return ""

    def _summed(self, page: str) -> str:
        for name, value in _counted(page):
            self.sums[name] = self.sums.get(name, 0) + value
        return "\n".join([ITERATIONS, *(f"{name} {value}" for name, value in self.sums.items())]) + "\n"


def _counted(page: str) -> Iterator[tuple[str, int]]:
    try:
        stats = parse(page)
    except (ValueError, RecursionError):
        return
    for item in stats:
        drafts = item.get("specDecodingStats") if isinstance(item, Mapping) else None
        # the other ranks of attention repeat the first one's numbers
        if not isinstance(drafts, Mapping) or item.get("attentionDpRank", 0) != 0:
            continue
        yield from ((SUMMED[key], value) for key, value in drafts.items() if key in SUMMED and _whole(value))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and value >= 0
