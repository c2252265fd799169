"""A server's own counters of speculation, read before and after.

The parser reads names, labels and numbers of Prometheus' text format. The counters cover the whole server, including
other clients' requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^\n]*\})? +([^ \n]+)( +-?[0-9]+)?")
MOST_LINE: Final = 10_000
MOST_NAMES: Final = 10_000
ABOUT: Final = re.compile(r"spec_|_spec|draft|accept")
"""Name patterns of speculation counters."""
DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"


def of_llama(name: str) -> str:
    """llama.cpp's name of one of vLLM's counters."""
    return name.replace("vllm:", "llamacpp:")


def counters(text: str) -> dict[str, float]:
    """The speculation samples, summed over their labels; a sample with a position keeps it as `NAME[POSITION]`.

    Counters are summed; a gauge (no `_total`) keeps its largest value.
    """
    mapping: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line.strip()) if len(line) <= MOST_LINE and len(mapping) < MOST_NAMES else None
        if match is None or not ABOUT.search(match[1]) or match[1].endswith("_created"):
            continue
        value = _number(match[3])
        place = re.search(r'position="([0-9]+)"', match[2] or "")
        name = f"{match[1]}[{place[1]}]" if place else match[1]
        if math.isfinite(value):
            mapping[name] = mapping.get(name, 0.0) + value if "_total" in name else max(mapping.get(name, value), value)
    return mapping


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def speculates(page: str) -> bool | None:
    """True if the server drafts: vLLM has these counters exactly if it does; None for other servers' pages."""
    return DRAFTS in counters(page) if "vllm:" in page else None


def change(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """The change between two readings: growth of counters, current values of gauges."""
    grown = {
        name: value - before.get(name, 0.0) if "_total" in name else value for name, value in sorted(after.items())
    }
    known = (("drafted", DRAFTED), ("accepted", ACCEPTED))
    named = {key: int(grown[item]) for key, name in known for item in (name, of_llama(name)) if item in grown}
    restarted = any(value < 0 for value in grown.values())
    return {**named, "samples": grown, **({"restarted": True} if restarted else {})}
