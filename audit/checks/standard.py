"""The default checks of an arm, by the evidence that its record gives.

Every list is made of checks that need no recorded rates and no extra sample
sizes. A list may name checks whose claim does not exist for the arm's rule or
temperature; these end `not_run` and decide nothing.
"""

from __future__ import annotations

from typing import Final

FULL: Final = (
    "accounting",
    "replay",
    "rng_streams",
    "greedy_equality",
    "coupled_equality",
    "bitwise",
    "law",
    "q_contract",
    "prefix_measurable",
    "acceptance_theory",
)
"""With p, q and decisions on record."""
TOKENS: Final = ("accounting", "greedy_equality", "coupled_equality", "bitwise", "two_sample")
"""With tokens and texts only: what the arm emits is compared with the baseline."""
DECODED: Final = ("text",)
"""Where the backend has a second account of the text."""
CALLS: Final = ("tool_call_equality",)
"""Where prompts offer tools, and their text can be read again or the arm must agree with its baseline token by token;
elsewhere fewer answers than a margin needs would leave a sampled arm undecided.
"""
CONSTRAINED: Final = ("schema_conformance",)
"""Where requests have a grammar."""
MASKED: Final = ("constraint_replay",)
"""Where the backend records its masks too."""
REDRAFTED: Final = ("draft_anchor",)
"""For the project's own proposers, which draft again along the record."""
FOREIGN: Final = ("liveness", "configuration", "reconciliation")
"""For an engine that decodes by itself: it answered, with the requested settings, and its accounts agree."""
HONOURED: Final = ("honoured",)
"""For such an engine with p on record: p of drafted rows has the requested parameters, which `law` takes as given."""
SERVED: Final = (*FOREIGN, "accounting", "greedy_equality", "same_seed", "two_sample", "seed")
"""For another engine without p and q on record."""
STREAMED: Final = ("no_leak",)
"""Where the text is recorded as it leaves."""
FILTERED: Final = ("filter_equality",)
"""Where filters read it."""
DECISIONS: Final = 3
"""The evidence level from which p, q and decisions are on record."""


def standard_checks(
    level: int, *, ours: bool, decoded: bool = True, calls: bool = False, constrained: bool = False, masks: bool = True
) -> tuple[str, ...]:
    """The default checks at an evidence level, of the project's own loop (`ours`) or of another engine; `decoded` if
    the tokens are decoded a second time, `calls` if the arm's tool calls are judged, `constrained` if
    requests have a grammar, whose masks are on record with `masks`.
    """
    grammar = ((*MASKED, *CONSTRAINED) if masks else CONSTRAINED) if constrained else ()
    text = (DECODED if decoded else ()) + (CALLS if calls else ()) + grammar
    if level >= DECISIONS:
        return (*FULL, *REDRAFTED, *text) if ours else (*FOREIGN, *FULL, *HONOURED, *text)
    return (*TOKENS, *REDRAFTED, *text) if ours else (*SERVED, *text)


def stream_checks(*, filters: bool) -> tuple[str, ...]:
    """Further default checks of an arm that records its text as it leaves, with `filters` over it or without."""
    return (*STREAMED, *FILTERED) if filters else STREAMED
