"""Reduces a step's rows in vLLM's worker, before they leave it.

The writer's thread calls it, so the engine does not wait for it. It follows every request's tokens, because penalties
and forbidden words depend on those before a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.backends.frames import Frame
from engine.backends.vllm.decisions import decided
from engine.backends.vllm.reduced import arrays_of, head_of
from engine.backends.vllm.spool import NamedStep, split
from engine.backends.vllm.worker_terms import WorkerTerms
from engine.record.foreign_steps import ForeignStep, step_record
from engine.record.reduction import columns_of, reduce


class Reducer:
    """The requests of one call.

    Args:
        terms: by the names of their answers.
    """

    def __init__(self, terms: Mapping[str, WorkerTerms]) -> None:
        self._terms = terms
        self._histories: dict[str, list[int]] = {}
        self._steps: dict[str, int] = {}

    def reduced(self, frame: Frame) -> Frame:
        """The same step with columns for rows; samples that nobody asked for are left out."""
        requests, steps = [], []
        for head, seen in zip(frame.header["requests"], split(frame), strict=True):
            terms = self._terms.get(seen.name.rpartition("-")[0])
            if terms is None:
                continue
            step = self._step(seen, tuple(head.get("offered", ())), terms)
            requests.append(_without_rows(head) | ({} if step is None else {"reduced": head_of(step)}))
            steps += [] if step is None else [step]
        return Frame({**frame.header, "requests": requests}, arrays_of(steps))

    def _step(self, named: NamedStep, offered: tuple[int, ...], terms: WorkerTerms) -> ForeignStep | None:
        """One request's step; None if its rows cannot be read without a mask."""
        history = self._histories.setdefault(named.name, list(terms.prompt))
        index = self._steps[named.name] = self._steps.get(named.name, -1) + 1
        seen = replace(named.seen, step=replace(named.seen.step, forbidden=offered))
        found = decided(seen, terms.reading)
        record = None if found.logits is None else step_record(index, found, history, terms)
        history += found.emitted
        return None if record is None else replace(found, columns=columns_of(reduce(terms, [record])))


def _without_rows(head: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in head.items() if name not in ("behind", "offered")}
