"""Attention of chains, batches and trees against one token at a time.

The positions lie around the borders at which kernels and modes change behaviour: multiples of 128 and 256, and the end
of the context up to `FAR`. Columns after a query's position hold other tokens, as they do after a rejection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core.trees import is_chain, path
from engine.core.types import Tree
from engine.models.cache import CacheShape, TensorSlotCache, aim_at
from engine.models.interface import Placed, Placement, chain_placement, place
from engine.models.numerics.devices import moved
from engine.models.numerics.interface import Numerics, RopeTables
from engine.models.probe.model_parts import ModelParts, RowDifference, difference

LONGEST = 9
"""Tokens of the longest drafted chain that is tried, with its root."""
BORDERS = (128, 256)
FAR = 2048
"""No position beyond this is tried: a probe takes milliseconds, not seconds."""
OFFSETS = (-2, 1, 0, -1, 2)
PROMPTS = (24, 48, 64, 100, 128, 192)
"""Lengths of the prompts whose last tokens are tried: kernels change at row counts between those of drafts and of the
longest prompt."""
SEED = 43
PERIOD = 331
"""Data repeat after this many positions; a prime, so that no border sees the same twice."""
LEVELS, WIDTH = 6, 10
HUBS = (3, 9, 0, 5, 7, 2)
"""Which node of each level the next level hangs under."""


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Queries [PERIOD, heads, head_dim], keys and values [PERIOD, kv_heads, head_dim] by token."""

    queries: Tensor
    keys: Tensor
    values: Tensor

    def at(self, index: Tensor) -> AttentionInputs:
        """Those of tokens [N]."""
        turned = (index % PERIOD).to(self.queries.device)
        return AttentionInputs(self.queries[turned], self.keys[turned], self.values[turned])


def _data(mode: Numerics, parts: ModelParts) -> AttentionInputs:
    """Queries and keys as the mode rotates them, for a mode may attend to no others."""
    heads = parts.heads
    tables = mode.rope(parts.frequencies, PERIOD, parts.dtype)
    rope = RopeTables(tables.cos.to(parts.device)[:, None], tables.sin.to(parts.device)[:, None])
    turned = mode.rotate(parts.draw(SEED, PERIOD, heads.heads + heads.kv_heads, heads.head_dim), rope)
    values = parts.draw(SEED + 1, PERIOD, heads.kv_heads, heads.head_dim)
    return AttentionInputs(turned[:, : heads.heads], turned[:, heads.heads :], values)


class AttentionProbe:
    """A full cache of one layer under one mode; row r holds token t + r * `stride` at position t."""

    def __init__(self, mode: Numerics, parts: ModelParts, rows: int, filled: int, stride: int = 17) -> None:
        heads = parts.heads
        self.mode, self.parts, self.stride = mode, parts, stride
        self.data = _data(mode, parts)
        shape = CacheShape(1, rows, heads.kv_heads, filled, heads.head_dim, device=parts.device)
        self.cache: TensorSlotCache = mode.new_cache(shape, parts.dtype)
        whole = chain_placement([[0] * filled] * rows, [0] * rows, self.cache.trash)
        self.write(whole, self.tokens(whole))

    def tokens(self, placement: Placement) -> Tensor:
        """[N] which token of the data each placed one is, by row and position."""
        rows = torch.arange(placement.first_row, placement.first_row + len(placement.lengths))
        which = placement.positions + self.stride * rows[:, None]
        return torch.cat([row[:count] for row, count in zip(which, placement.lengths, strict=True)])

    def write(self, placement: Placement, tokens: Tensor) -> None:
        """Write keys and values of `tokens` to the placement's columns."""
        data = self.data.at(tokens)
        self.cache.write(0, self.cache.open(moved(aim_at(placement), self.parts.device)), data.keys, data.values)

    def attend(self, placement: Placement, tokens: Tensor) -> Tensor:
        """[N, heads * head_dim] the attention of the placed tokens."""
        layout = moved(self.mode.layout(placement, self.parts.heads, self.parts.dtype), self.parts.device)
        return self.mode.attend(self.data.at(tokens).queries, self.mode.windows(self.cache, layout)[0], layout)

    def chain(self, row: int, start: int, count: int) -> Tensor:
        """Attention of `count` tokens of one row from a position."""
        placement = chain_placement([[0] * count], [start], self.cache.trash, first_row=row)
        return self.attend(placement, self.tokens(placement))

    def one_at_a_time(self, row: int, start: int, count: int) -> Tensor:
        """The same, token by token."""
        return torch.cat([self.chain(row, start + i, 1) for i in range(count)])


def chains(mode: Numerics, parts: ModelParts) -> str | None:
    """The first difference between a chain and its tokens one at a time; None if there is none."""
    bench = AttentionProbe(mode, parts, 1, min(parts.heads.context, FAR))
    whole = bench.chain(0, 0, min(bench.cache.capacity, max(BORDERS) + LONGEST))
    for border in _borders(bench.cache.capacity):
        first = max(0, border - LONGEST // 2)
        alone = bench.one_at_a_time(0, first, min(border + max(OFFSETS) + LONGEST, bench.cache.capacity) - first)
        for start, count in _pairs(border, bench.cache.capacity):
            wrong = difference(bench.chain(0, start, count), alone[start - first :][:count])
            if wrong:
                return f"token {wrong.row} of {count} from position {start} differs from it alone: {wrong}"
        shared = whole[first : first + len(alone)]
        wrong = difference(shared, alone[: len(shared)]) if len(shared) else None
        if wrong:
            return f"position {first + wrong.row} of a prompt of {len(whole)} differs from it alone: {wrong}"
    return _prompt_difference(bench)


def _prompt_difference(bench: AttentionProbe) -> str | None:
    """The first difference between the end of a prompt of any of PROMPTS and its tokens one at a time."""
    for count in (item for item in PROMPTS if item <= bench.cache.capacity):
        first = count - len(OFFSETS)
        wrong = difference(bench.chain(0, 0, count)[first:], bench.one_at_a_time(0, first, len(OFFSETS)))
        if wrong:
            return f"position {first + wrong.row} of a prompt of {count} differs from it alone: {wrong}"
    return None


def _pairs(border: int, capacity: int) -> list[tuple[int, int]]:
    """Starts and lengths of chains: every length across the border, and from another place near it."""
    pairs = []
    for count in range(2, LONGEST + 1):
        starts = {max(0, border - count // 2), max(0, border + OFFSETS[count % 5])}
        pairs += [(start, count) for start in sorted(starts) if start + count <= capacity]
    return pairs


def _borders(capacity: int) -> list[int]:
    """Positions around which chains are tried: the beginning, the borders, and the last multiple of 128."""
    far = (capacity - LONGEST - max(OFFSETS)) // 128 * 128
    return sorted({border for border in (0, *BORDERS, far) if 0 <= border < capacity - max(OFFSETS)})


def batches(mode: Numerics, parts: ModelParts) -> str | None:
    """The first difference between a row of a ragged batch of eight and the row alone; None if there is none."""
    filled = min(parts.heads.context, max(BORDERS) + LONGEST)
    bench = AttentionProbe(mode, parts, 8, filled)
    wanted = ((0, 1), (3, 9), (125, 4), (127, 1), (130, 5), (0, 0), (250, 9), (257, 2))
    counts = [min(count, filled) for _, count in wanted]
    starts = [min(start, filled - count) for (start, _), count in zip(wanted, counts, strict=True)]
    placement = chain_placement([[0] * count for count in counts], starts, bench.cache.trash)
    together = torch.split(bench.attend(placement, bench.tokens(placement)), counts)
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        wrong = difference(together[row], bench.one_at_a_time(row, start, count)) if count else None
        if wrong:
            return f"row {row} of a batch of 8, position {start + wrong.row}, differs from it alone: {wrong}"
    return None


def trees(mode: Numerics, parts: ModelParts) -> str | None:
    """The first difference between a node of a tree and the same path drafted as a chain; None if there is none."""
    room = min(parts.heads.context, FAR) - LEVELS * WIDTH
    if room < 2:
        return f"the context of {parts.heads.context} positions is too short to try trees of {LEVELS * WIDTH} nodes"
    # the second makes a tree's columns reach as far as possible over the end of a tile, the next two cross one
    wanted = (40, 128 - LEVELS - 1, 126, 254, room // 128 * 128 - 3)
    for committed in sorted({min(max(2, item), room) for item in wanted}):
        text = _tree_difference(AttentionProbe(mode, parts, 4, committed + LEVELS * WIDTH, stride=0), committed)
        if text:
            return text
    return None


def _tree_difference(bench: AttentionProbe, committed: int) -> str | None:
    """A batch of a wide tree, an empty row, a chain and a deep tree, all after `committed` tokens."""
    drafted = (_wide_tree(), None, Tree.chain((0,) * LEVELS), _deep_tree())
    steps = [None if tree is None else Placed(0, committed, tree) for tree in drafted]
    placement = place(steps, bench.cache.trash)
    tokens = _tree_tokens(placement, committed)
    bench.write(placement, tokens)
    rows = torch.split(bench.attend(placement, tokens), list(placement.lengths))
    by_row = torch.split(tokens, list(placement.lengths))
    for row, tree in enumerate(drafted):
        for leaf in _leaves(tree):
            assert tree is not None
            nodes = [0, *(node + 1 for node in path(tree, leaf))]
            wrong = _path_difference(bench, committed, by_row[row][nodes], rows[row][nodes])
            if wrong:
                place_ = f"node {nodes[wrong.row]} of a tree of {len(tree)} after {committed} tokens"
                return f"{place_} differs from the same path as a chain: {wrong}"
    return None


def _tree_tokens(placement: Placement, committed: int) -> Tensor:
    """[N] the root is every row's last committed token, every node of every tree a token of its own."""
    columns = [row[:count] for row, count in zip(placement.slots, placement.lengths, strict=True)]
    return torch.cat([torch.where(row < committed, row, row + 31 * (i + 1)) for i, row in enumerate(columns)])


def _path_difference(bench: AttentionProbe, committed: int, tokens: Tensor, tensor: Tensor) -> RowDifference | None:
    chain = chain_placement([[0] * len(tokens)], [committed - 1], bench.cache.trash, first_row=1)
    bench.write(chain, tokens)
    return difference(tensor, bench.attend(chain, tokens))


def _leaves(tree: Tree | None) -> Sequence[int]:
    """The last node, and one in the middle where there are branches."""
    if tree is None or is_chain(tree):
        return () if tree is None else (len(tree) - 1,)
    return (len(tree) - 1, len(tree) // 2)


def _wide_tree() -> Tree:
    """LEVELS levels of WIDTH nodes; a path's nodes lie up to 2 * WIDTH columns apart."""
    parents = [-1] * WIDTH
    for level in range(1, LEVELS):
        parents += [(level - 1) * WIDTH + HUBS[level - 1]] * WIDTH
    return Tree((0,) * len(parents), tuple(parents))


def _deep_tree() -> Tree:
    """A chain in which every node has a sibling: columns run twice as fast as positions."""
    parents = [-1, -1]
    for level in range(1, 2 * LEVELS):
        parents += [2 * level - 1 - level % 2] * 2
    return Tree((0,) * len(parents), tuple(parents))
