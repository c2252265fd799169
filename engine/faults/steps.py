"""Faults at the seams of a step: entries of the target's cache that are wrong after certain ends of the step before.

The step that causes the damage is right, and so is every decision for the row that it sees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from engine.core.types import Protocol
from engine.faults.interface import ANY_ARM, CHAINS, COUPLED, ChangeParts, Fault, PromptLength, Scenario
from engine.faults.wrappers import overwrite, with_target
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs, WrappedModel

PAGE: Final = 16
"""Columns in a page of the cache (`PAGE_BORDER_ENTRIES_LOST`)."""
CHUNK: Final = 128
"""Prompt tokens that are read at once (`LAST_CHUNK_ONE_EARLY`)."""

# entries that depend on how the step before ended


@dataclass(frozen=True, slots=True)
class LastStep:
    """A row's step before: the column of its root, root and drafted tokens, and how many drafts were kept."""

    root: int
    tokens: tuple[int, ...]
    kept: int

    @property
    def drafted(self) -> int:
        """The number of drafted tokens."""
        return len(self.tokens) - 1


Leftovers = Callable[[LastStep], Mapping[int, int]]
"""The step before -> the tokens whose keys and values stand in some columns, by column."""


def no_leftovers(_before: LastStep) -> Mapping[int, int]:
    """Every column is right."""
    return {}


class _StepMemory(WrappedModel):
    """Knows the last step of each row, for chains."""

    def __init__(self, inner: TargetModel) -> None:
        super().__init__(inner)
        self._steps: dict[int, LastStep] = {}

    def _last_steps(self, placement: Placement) -> dict[int, LastStep]:
        """The steps before, by row; remembers the present ones in their place."""
        last: dict[int, LastStep] = {}
        for b, length in enumerate(placement.lengths):
            if not length:
                continue
            root, tokens = int(placement.slots[b, 0]), tuple(placement.tokens[b, :length].tolist())
            before = self._steps.get(b)
            if before is not None and root > before.root:
                last[b] = replace(before, kept=root - before.root - 1)
            self._steps[b] = LastStep(root, tokens, 0)
        return last

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """As the inner model's; a prompt begins a new request."""
        if want.logits:
            return self._step(cache, placement, want, self._last_steps(placement))
        self._steps.pop(placement.first_row, None)
        return self.inner.forward(cache, placement, want)

    def _step(
        self, cache: SlotCache, placement: Placement, want: WantedOutputs, _last: Mapping[int, LastStep]
    ) -> Forward:
        return self.inner.forward(cache, placement, want)


class _LeftoverColumns(_StepMemory):
    """Columns that are wrong from the next step on, or, for its root, from the step after it on."""

    def __init__(self, inner: TargetModel, early: Leftovers, late: Leftovers) -> None:
        super().__init__(inner)
        self._early, self._late = early, late

    def _step(
        self, cache: SlotCache, placement: Placement, want: WantedOutputs, last: Mapping[int, LastStep]
    ) -> Forward:
        for row, step in last.items():
            overwrite(self.inner, cache, row, self._early(step))
        forward = self.inner.forward(cache, placement, want)
        for row, step in last.items():
            overwrite(self.inner, cache, row, self._late(step))
        return forward


def with_leftovers(early: Leftovers = no_leftovers, late: Leftovers = no_leftovers) -> ChangeParts:
    """Leave wrong entries in the target's cache."""
    return with_target(lambda model: _LeftoverColumns(model, early, late))


LAST_ACCEPTED_ENTRY_STALE = Fault(
    "vllm-project/vllm#9730, #5765",
    with_leftovers(
        early=lambda step: {step.root + step.kept: step.tokens[step.kept - 1]} if 0 < step.drafted == step.kept else {}
    ),
    CHAINS,
    COUPLED,
    situation="after_kept_whole",
)
"""After a draft that was kept whole, the cache entry of its last token is that of the token before.

The step emits the bonus token correctly; the step after it reads the wrong entry. Upstream the entry was missing in the
cache of the draft.
"""

REJECTED_LAST_ENTRY_STAYS = Fault(
    "openvinotoolkit/openvino.genai#4190",
    with_leftovers(
        late=lambda step: (
            {step.root + step.kept + 1: step.tokens[step.kept + 1]}
            if step.drafted and step.kept == step.drafted - 1
            else {}
        )
    ),
    CHAINS,
    COUPLED,
    situation="rejected_last",
)
"""A draft rejected at its last place is not rolled back: its entry stays where that of the recovered token belongs.

The counter of removed tokens is 0 for the last place, and so the rollback is skipped; rejections elsewhere are right.
"""


class _ForgottenHistory(_StepMemory):
    def _step(
        self, cache: SlotCache, placement: Placement, want: WantedOutputs, last: Mapping[int, LastStep]
    ) -> Forward:
        lost = [row for row, step in last.items() if step.drafted and not step.kept]
        if not lost:
            return self.inner.forward(cache, placement, want)
        branches = placement.visible.clone()
        for row in lost:
            branches[row, : placement.lengths[row], : int(placement.slots[row, 0])] = False
        return self.inner.forward(cache, replace(placement, branches=branches), want)


HISTORY_LOST_AFTER_REJECTION = Fault(
    "paiml/aprender#2014", with_target(_ForgottenHistory), CHAINS, COUPLED, situation="rejected_first"
)
"""After a draft of which nothing was kept, the step attends to its own tokens only.

The cache is reset where it should be rolled back. The next step with an accepted token sees the history again; upstream
it was lost for good.
"""

# borders


class _LostBeyondBorder(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        forward = self.inner.forward(cache, placement, want)
        for b, length in enumerate(placement.lengths if want.logits else ()):
            slots = placement.slots[b, :length].tolist()
            overwrite(self.inner, cache, b, {slot: 0 for slot in slots if slot // PAGE > slots[0] // PAGE})
        return forward


PAGE_BORDER_ENTRIES_LOST = Fault(
    "RBLN-SW/vllm-rbln#326, #1128", with_target(_LostBeyondBorder), CHAINS, COUPLED, situation="block_border"
)
"""The entries of drafted tokens beyond the end of a page are not written to the next page.

The step itself computes with its own tokens. Only a draft that crosses a multiple of 16 and is kept beyond it leaves
wrong entries, about one step in five.
"""


class _LastChunkEarly(WrappedModel):
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        length = placement.lengths[0]
        if want.logits or length <= CHUNK:
            return self.inner.forward(cache, placement, want)
        start = (length - 1) // CHUNK * CHUNK
        tokens = placement.tokens.clone()
        tokens[0, start:length] = placement.tokens[0, start - 1 : length - 1]
        return self.inner.forward(cache, replace(placement, tokens=tokens), want)


LAST_CHUNK_ONE_EARLY = Fault(
    "Integral2u/SharpMind#57",
    with_target(_LastChunkEarly),
    ANY_ARM,
    Scenario(protocol=Protocol.GUMBEL, prompt=PromptLength(132, 140)),
    situation="long_prompt",
)
"""The last chunk of a long prompt begins one token too early, and its last token is never read.

A prompt of one chunk is right. Upstream the tokens between two chunks were skipped.
"""
