"""The evidence of `python -m tests.bench battery`: simulated requests, read from files as from a store.

It comes from the simulator (rejection of drawn chains). A vocabulary too large for a row per token has rows of a few
contexts, each with some likely tokens over a long tail. Evidence of more requests than are distinct repeats their
traces under other names.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import ArmKind, ArmRecord, Evidence, LazyRequests, Level, RequestRecord
from engine.core.types import RecordLevel
from engine.record.effective import Effective
from engine.record.trace import TraceHeader, decode, encode, lazy_trace
from tests.audit.checks.simulator import SAMPLED, Decoder, Laws, Setup, World, world

LENGTH = 512
"""Tokens of a request, by default."""
LEVELS = {RecordLevel.TOPK: Level.L3, RecordLevel.FULL: Level.L4}


@dataclass(frozen=True)
class Workload:
    """Which evidence."""

    folder: str
    vocabulary: int
    level: RecordLevel
    contexts: int | None = None
    """How many rows a wide vocabulary has; None for a row after each token."""
    length: int = LENGTH
    """Tokens of a request."""

    def path(self, index: int) -> Path:
        return Path(self.folder) / f"{self.name}-{index}.trace"

    @property
    def name(self) -> str:
        """What its files are called after."""
        few = "" if self.contexts is None else f"-{self.contexts}"
        return f"{self.level}-{self.vocabulary}{few}-{self.length}"


class Folded:
    """[V, V] rows that repeat: token t has that of context t modulo the number of contexts."""

    def __init__(self, rows: NDArray[np.floating[Any]]) -> None:
        self._rows = rows
        self.shape = (rows.shape[1], rows.shape[1])

    def __getitem__(self, token: int) -> NDArray[np.floating[Any]]:
        """The row after a token."""
        return np.asarray(self._rows[token % len(self._rows)])


@dataclass(frozen=True)
class Source:
    """Where tokens come from."""

    world: World
    laws: Laws


def source(workload: Workload, setup: Setup) -> Source:
    """Rows after every token, or of a few contexts."""
    if workload.contexts is None:
        made = world(1, vocabulary=workload.vocabulary, sharpness=2.5)
        return Source(made, Laws.of(made, setup.sampling))
    few = peaked(workload.contexts, workload.vocabulary)
    laws = Laws.of(few, setup.sampling)
    return Source(World(Folded(few.target), Folded(few.draft)), Laws(Folded(laws.p), Folded(laws.q)))


def peaked(contexts: int, vocabulary: int) -> World:
    """[contexts, V] logits of target and draft: sixty likely tokens over a long tail."""
    rng = np.random.default_rng(11)
    target = rng.normal(0.0, 1.0, (contexts, vocabulary))
    for row in target:
        row[rng.choice(vocabulary, 60, replace=False)] += rng.normal(11.0, 1.5, 60)
    draft = target + np.where(target > 6.0, rng.normal(0.0, 1.0, target.shape), 0.0)
    return World(target.astype(np.float32), draft.astype(np.float32))


def write(workload: Workload, indices: list[int]) -> None:
    """Traces that are not there yet."""
    missing = [index for index in indices if not workload.path(index).exists()]
    if not missing:
        return
    setup = Setup(level=workload.level, sampling=replace(SAMPLED, max_new_tokens=workload.length))
    made = source(workload, setup)
    for index in missing:
        workload.path(index).write_bytes(encode(Decoder(made.world, setup, f"case-{index:06d}", made.laws).run()))


@dataclass(frozen=True)
class _Kept:
    header: TraceHeader
    tokens: array[int]
    path: Path


def evidence(workload: Workload, requests: int, distinct: int) -> Evidence:
    """An arm whose traces are read from their files when asked for; it keeps of each what a store's reader keeps."""
    paths = [workload.path(index) for index in range(min(requests, distinct))]
    traces = (decode(path.read_bytes()) for path in paths)
    found = [_Kept(t.header, array("I", t.tokens), path) for t, path in zip(traces, paths, strict=True)]
    repeated = (found[i % len(found)] for i in range(requests))
    kept = [_Kept(replace(each.header), each.tokens[:], each.path) for each in repeated]

    def read(index: int) -> RequestRecord:
        own = kept[index]
        name, tokens = f"{own.header.request}-{index}", tuple(own.tokens)
        trace = lazy_trace(own.header, own.path.read_bytes)
        return RequestRecord(name, name, 0, "chat", trace, tokens, "", own.header.finish_reason, 1, intact=True)

    lazy = LazyRequests(requests, read)
    return Evidence(ArmRecord("candidate", ArmKind.CANDIDATE, LEVELS[workload.level], Effective(gamma=4), lazy))
