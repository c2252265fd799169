"""Faults of the target's cache: columns that keep, lose or move the wrong keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from engine.core.types import Protocol
from engine.faults.interface import (
    CHAINS,
    COUPLED,
    COUPLED_TREE,
    SEVERAL,
    TREES,
    ChangeParts,
    Fault,
    PromptLength,
    Scenario,
)
from engine.faults.wrappers import with_target
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, WrappedModel

RESIDUE_PERIOD: Final = 20
"""`KV_RESIDUE` affects columns whose index is a multiple of this number."""
BLOCK: Final = 4
"""Tokens in a block of the prefix cache."""
LONG_BLOCK: Final = 20
"""Tokens in a block of the cache of `PARTIAL_PREFIX_TAKEN_WHOLE`."""

# rollback


class StaleColumns(WrappedModel):
    """A target whose every `every`-th column cannot be written twice within a request.

    A step still computes with its own tokens. In such a column it leaves the keys and values of the token that was
    there first, usually a rejected draft.
    """

    def __init__(self, inner: TargetModel, every: int) -> None:
        super().__init__(inner)
        self._every = every
        self._first: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """As the inner model's; afterwards the old keys and values are put back."""
        forward = self.inner.forward(cache, placement, want)
        stale = placement.tokens.clone()
        for b, length in enumerate(placement.lengths):
            self._keep_first(placement, b, length, stale[b], begins=not want.logits)
        if not stale.equal(placement.tokens):
            self.inner.forward(cache, replace(placement, tokens=stale), WantedOutputs(logits=False))
        return forward

    def _keep_first(self, placement: Placement, b: int, length: int, stale: Tensor, begins: bool) -> None:
        if length == 0:
            return
        row = placement.first_row + b
        if begins or int(placement.positions[b, 0]) == 0:
            self._first[row] = {}
        first = self._first.setdefault(row, {})
        for t in range(length):
            slot = int(placement.slots[b, t])
            if slot % self._every == 0:
                stale[t] = first.setdefault(slot, int(stale[t]))


def with_stale_columns(every: int) -> ChangeParts:
    """Give the target's cache stale columns."""
    return with_target(lambda model: StaleColumns(model, every))


KV_NOT_ROLLED_BACK = Fault(
    "ml-explore/mlx-lm#1109, #1423, #1470", with_stale_columns(1), CHAINS, COUPLED, situation="after_rejection"
)
"""Keys and values of rejected drafts stay in the cache, and those of the right tokens are lost.

A rollback does nothing. Every decision is right for the rows that it sees, and the rows are wrong from the second step
after a rejection on.
"""

KV_RESIDUE = Fault(
    "vllm-project/vllm#55894, #52942", with_stale_columns(RESIDUE_PERIOD), CHAINS, COUPLED, situation="after_rejection"
)
"""Every twentieth column of the cache keeps what a rejected draft left there.

The fault resembles a rollback that does nothing, but is rare: most requests are right, and the errors in the others
read like another sample.
"""

# the accepted path of a tree


PATH_NOT_GATHERED = Fault(
    "none known: an engine for chains that is given trees",
    lambda parts: replace(parts, keep=lambda _cache, _row, _committed, _path: None),
    TREES,
    COUPLED_TREE,
    situation="tree_branch",
)
"""After a tree step the columns of the accepted nodes stay where they are.

The first columns are taken for the path. That is right for chains and for the first branch of every tree, which is the
branch most often accepted.
"""


def _with_path(change: Callable[[Sequence[int]], Sequence[int]]) -> ChangeParts:
    """Keep another path of a tree than the accepted one."""
    return lambda parts: replace(
        parts, keep=lambda cache, row, committed, path: parts.keep(cache, row, committed, change(path))
    )


WRONG_PATH_GATHERED = Fault(
    "none known: an index that is off by one in the gather after a tree step",
    _with_path(lambda path: [max(0, node - 1) for node in path]),
    TREES,
    COUPLED_TREE,
    situation="tree_deep",
)
"""After a tree step the columns of the nodes before the accepted ones are kept.

Tokens and decisions are right in that step; the next ones are computed after a path that was not taken.
"""


DEEP_PATH_NOT_GATHERED = Fault(
    "sgl-project/sglang#15360", _with_path(lambda path: path[:1]), TREES, COUPLED_TREE, situation="tree_deep"
)
"""After a tree step the column of the first accepted node is moved, and those of the deeper ones stay where they are.

A path of one node is right, and so is the first branch.
"""

# prefix cache


class _StalePrefix(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._written: dict[int, dict[int, int]] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        read = placement if want.logits else self._reuse(placement)
        for b, length in enumerate(read.lengths):
            tokens, slots = read.tokens[b, :length].tolist(), read.slots[b, :length].tolist()
            self._written.setdefault(read.first_row + b, {}).update(zip(slots, tokens, strict=True))
        return self.inner.forward(cache, read, want)

    def _reuse(self, placement: Placement) -> Placement:
        written, length = self._written.get(placement.first_row, {}), placement.lengths[0]
        tokens = placement.tokens.clone()
        for t in range(max(0, length - BLOCK), length):
            tokens[0, t] = written.get(int(placement.slots[0, t]), int(tokens[0, t]))
        return replace(placement, tokens=tokens)


STALE_PREFIX_BLOCK = Fault(
    "vllm-project/vllm#57128, #53912, sgl-project/sglang#19897",
    with_target(_StalePrefix),
    SEVERAL,
    Scenario(protocol=Protocol.GUMBEL, rows=2),
    situation="row_reused",
)
"""The last block of a prompt comes from a cache that another request filled.

The key of the block matched, its content did not. A request in a fresh row is right; a request that follows another one
reads the end of a foreign prompt.
"""


class _PartialPrefix(WrappedModel):
    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._blocks: dict[int, Tensor] = {}

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        if want.logits:
            return self.inner.forward(cache, placement, want)
        tokens = placement.tokens.clone()
        block = self._blocks.setdefault(int(tokens[0, 0]), tokens[0, :LONG_BLOCK].clone())
        count = min(len(block), placement.lengths[0])
        tokens[0, :count] = block[:count]
        return self.inner.forward(cache, replace(placement, tokens=tokens), want)


PARTIAL_PREFIX_TAKEN_WHOLE = Fault(
    "mratsim/tattletale#93",
    with_target(_PartialPrefix),
    SEVERAL,
    Scenario(protocol=Protocol.GUMBEL, prompt=PromptLength(20, 21), shared=16),
    situation="shared_prefix",
)
"""A prompt that shares its first token with an earlier prompt takes over the whole first block of that prompt.

The search for a cached prefix accepts a block that matches in part. Prompts without a common beginning are right.
"""
