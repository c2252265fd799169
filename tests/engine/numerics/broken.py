"""Modes with one fault each, made of the mode that holds on every machine."""

from __future__ import annotations

import torch

from engine.models.numerics.exact import ExactNumerics
from engine.models.numerics.interface import Invariance
from engine.models.numerics.rotations import rope_tables

LITTLE = 1 + 2.0**-20


class Sound(ExactNumerics):
    """Nothing is wrong, and no more is promised than trees."""

    name = "sound"
    promises = Invariance.TREE


class CountedProducts(Sound):
    """A product of 13 rows rounds otherwise."""

    def matrix(self, affine):
        inner = super().matrix(affine)
        return lambda x: inner(x) * LITTLE if len(x) == 13 else inner(x)


class PlacedProducts(Sound):
    """Row 3 of a product rounds otherwise."""

    def matrix(self, affine):
        inner = super().matrix(affine)

        def multiply(x):
            answer = inner(x)
            answer[3:4] *= LITTLE
            return answer

        return multiply


class NeighbouringProducts(Sound):
    """Rows of a large product see the one before; the wide head only."""

    def matrix(self, affine):
        inner = super().matrix(affine)
        if len(affine.weight) < 2000:
            return inner
        return lambda x: inner(x) + (inner(x).roll(1, 0) * 2.0**-30 if len(x) == 64 else 0)


class CountedNorm(Sound):
    def norm(self, weight, eps, width):
        inner = super().norm(weight, eps, width)
        return lambda x: inner(x) * (LITTLE if len(x) == 33 else 1)


class CountedGate(Sound):
    def gate(self, gate_up):
        return super().gate(gate_up) * (LITTLE if len(gate_up) == 1 else 1)


class CountedRotation(Sound):
    def rotate(self, x, rope):
        return super().rotate(x, rope) * (LITTLE if len(x) == 16 else 1)


class Attention(Sound):
    """Attention that rounds otherwise where `wrong` says."""

    def attend(self, queries, window, layout):
        seen = super().attend(queries, window, layout)
        return seen * LITTLE if self.wrong(layout.placement) else seen

    def wrong(self, placement):
        raise NotImplementedError


class LongChains(Attention):
    """Of nine tokens, over position 256."""

    def wrong(self, placement):
        return len(placement.lengths) == 1 and placement.lengths[0] == 9 and 250 < int(placement.positions[0, 0]) < 257


class LongPrompts(Attention):
    def wrong(self, placement):
        return len(placement.lengths) == 1 and placement.lengths[0] > 100


class MiddlePrompts(Attention):
    """Of a length between those of drafts and of the longest prompt."""

    def wrong(self, placement):
        return len(placement.lengths) == 1 and 63 <= placement.lengths[0] <= 128


class StaleColumns(Sound):
    """What stands in the column after a query shows."""

    def attend(self, queries, window, layout):
        seen = super().attend(queries, window, layout)
        placement = layout.placement
        if placement.branches is None and len(placement.lengths) == 1 and placement.lengths[0] > 1:
            seen[:-1] += 2.0**-30 * window.keys[0, 0, placement.span - 1]
        return seen


class Batches(Attention):
    def wrong(self, placement):
        return len(placement.lengths) == 8


class InsertedZeros(Sound):
    """Sums change where a hidden column stands between visible ones, once a path reaches over position 128."""

    name = "tiled"

    def attend(self, queries, window, layout):
        seen = super().attend(queries, window, layout)
        placement = layout.placement
        moved = torch.cat(
            [
                (slots != positions)[:count] & (positions[:count] >= 128)
                for slots, positions, count in zip(placement.slots, placement.positions, placement.lengths, strict=True)
            ]
        )
        return torch.where(moved[:, None], seen * LITTLE, seen) if placement.branches is not None else seen


class Threaded(Sound):
    def attend(self, queries, window, layout):
        seen = super().attend(queries, window, layout)
        return seen * LITTLE if torch.get_num_threads() > 1 else seen


class ThreadedEverywhere(Threaded):
    promises = Invariance.EVERYWHERE


class OtherMachine(ExactNumerics):
    """Consistent with itself, but its tables are another library's."""

    def rope(self, frequencies, positions, dtype):
        return rope_tables(frequencies * LITTLE, positions, torch.float32)


class Absent(Sound):
    def matrix(self, affine):
        def multiply(x):
            raise NotImplementedError("no kernel for\nthis dtype")

        return multiply
