"""The first token of every response is the draft's, whatever the target says.

One token in a response: a test that pools all places sees little of it.
"""

from __future__ import annotations

from dataclasses import replace

from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.sampling.target_rows import TargetRows
from engine.sampling.transforms import TransformedRow, one_hot


class _Trusting(TargetRows):
    def _given(self, row: int) -> int | None:
        begins = len(self._history) == self._n_prompt
        return self.tree.tokens[0] if row == 0 and begins and len(self.tree) else None

    def __getitem__(self, row: int) -> TransformedRow:
        found, given = super().__getitem__(row), self._given(row)
        return found if given is None else replace(found, p=one_hot(given, len(found.p)))

    def best(self, row: int) -> int:
        given = self._given(row)
        return super().best(row) if given is None else given


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, rows=_Trusting)


FAULT = Fault(
    name="first_token_from_draft",
    breaks="law",
    upstream="none known: a response that begins before the first verification",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both"),
)
