"""Samples of lm-evaluation-harness (`samples_TASK_*.jsonl`): one row per document, no place for evidence."""

from __future__ import annotations

import json
from typing import Final

from audit.attach.interface import PlainFile

COLUMNS: Final = frozenset({"doc_id", "doc_hash", "resps"})


def _fits(name: str, report: bytes) -> bool:
    if not name.endswith(".jsonl"):
        return False
    try:
        first = json.loads(report.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() >= COLUMNS


FORMAT = PlainFile("lm_eval_samples", _fits)
