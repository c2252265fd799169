"""Faults of grammars: target rows are masked by no grammar, by that of another row, or in a wrong state.

Drafts keep the sound masks, and the record has the masks that were applied: decisions follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from engine.core.structured import ConstraintKind, ConstraintSpec
from engine.core.trees import path_tokens
from engine.core.types import Mask, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import VOCABULARY, Fault, Scenario, Situation, Suits
from engine.faults.wrappers import WrappedRows, with_rows
from engine.sampling.transforms import MaskOf, TargetRows

WORDS: Final = ConstraintSpec(ConstraintKind.REGEX, r"[a-m]{2,5}( [a-m]{2,5}){3,9}[.!?]")
SENTENCES: Final = Scenario(
    sampling=SamplingParams(temperature=1.0, structured=WORDS, stop_token_ids=(VOCABULARY - 1,))
)
MASKED: Final = Suits(temperature="both", needs=("grammar",))
MASKED_CHAIN: Final = Suits(shape="chain", temperature="both", needs=("grammar",))

ChangeMask = Callable[[TargetRows, int, Mask], Mask]
"""(rows of a step, number of one, its sound mask) -> the mask in effect."""


class _ChangedMasks(WrappedRows):
    def __init__(self, inner: TargetRows, change: ChangeMask) -> None:
        super().__init__(inner)
        self._changed = change
        self._masked: dict[int, Mask] = {}

    def allowed(self, row: int) -> Mask | None:
        """The changed mask; None without a grammar."""
        if row not in self._masked:
            sound = super().allowed(row)
            if sound is None:
                return None
            self._masked[row] = self._changed(self, row, sound)
        return self._masked[row]


def _mask_fault(
    upstream: str, make: Callable[[], ChangeMask], suits: Suits = MASKED, *, situation: Situation = "grammar"
) -> Fault:
    def apply(parts: EngineParts) -> EngineParts:
        change = make()
        return with_rows(lambda rows: _ChangedMasks(rows, change))(parts)

    return Fault(upstream, apply, suits, SENTENCES, situation=situation)


def _nothing_masked(_rows: TargetRows, _row: int, sound: Mask) -> Mask:
    return np.ones(len(sound), dtype=np.bool_)


MASK_ON_DRAFT_ONLY = _mask_fault(
    "none known: an engine that constrains its draft model and samples the target freely", lambda: _nothing_masked
)
"""The draft is drawn inside the grammar; the target's rows are not masked at all."""


def _bonus_free(rows: TargetRows, row: int, sound: Mask) -> Mask:
    bonus = row > 0 and row - 1 not in rows.tree.parents
    return np.ones(len(sound), dtype=np.bool_) if bonus else sound


MASK_MISSING_ON_BONUS_TOKEN = _mask_fault(
    "none known: the other half of engines that mask drafted and bonus rows in two places",
    lambda: _bonus_free,
    situation="bonus_token",
)
"""The token after a draft that is kept whole is drawn without a mask."""


@dataclass(slots=True)
class _Matcher:
    """The state of one request's matcher as the engine keeps it: the tokens that it has accepted.

    seen: committed tokens when the last step began. drafted: that step's draft.
    """

    accepted: list[int] = field(default_factory=list)
    seen: int = 0
    drafted: tuple[int, ...] = ()

    def accept(self, masks: MaskOf, tokens: Sequence[int]) -> None:
        """Go on by the tokens that the grammar takes; a matcher refuses the others and stays."""
        for token in tokens:
            if masks(self.accepted)[token]:
                self.accepted.append(token)


AdvanceMatcher = Callable[[_Matcher, MaskOf, Sequence[int]], None]
"""(matcher, the sound masks, the tokens that the last step committed): the state at the next step."""


def _stateful(advance: AdvanceMatcher) -> Callable[[], ChangeMask]:
    """Masks by a matcher that an engine moves from step to step."""

    def make() -> ChangeMask:
        matchers: dict[int, _Matcher] = {}

        def change(rows: TargetRows, row: int, _sound: Mask) -> Mask:
            masks, history, start = rows._masks, rows._history, rows._n_prompt
            assert masks is not None
            generated = list(history[start:])
            matcher = matchers.get(id(history))
            if matcher is None or not generated:
                matcher = matchers[id(history)] = _Matcher()
            if len(generated) > matcher.seen:
                advance(matcher, masks, generated[matcher.seen :])
            matcher.seen, matcher.drafted = len(generated), rows.tree.tokens
            return masks([*matcher.accepted, *path_tokens(rows.tree, row - 1)])

        return change

    return make


def _without_rollback(matcher: _Matcher, masks: MaskOf, committed: Sequence[int]) -> None:
    whole = committed[:-1] == list(matcher.drafted)
    matcher.accept(masks, [*matcher.drafted, committed[-1]] if not whole else committed)


MATCHER_NOT_ROLLED_BACK = _mask_fault(
    "openvinotoolkit/openvino.genai#4081, sgl-project/sglang#15373",
    _stateful(_without_rollback),
    MASKED_CHAIN,
    situation="after_rejection",
)
"""The matcher keeps the whole draft after a rejection, and goes on from there with the recovered token."""


def _by_rejected_tokens(matcher: _Matcher, masks: MaskOf, committed: Sequence[int]) -> None:
    kept = len(committed) - 1
    rejected = matcher.drafted[kept : kept + 1]
    matcher.accept(masks, [*committed[:-1], *(rejected or committed[-1:])])


MATCHER_ADVANCED_BY_REJECTED_TOKENS = _mask_fault(
    "vllm-project/vllm#31955", _stateful(_by_rejected_tokens), MASKED_CHAIN, situation="after_rejection"
)
"""The matcher goes on with the token that was rejected instead of the one that was emitted in its place."""


def _of_row_before() -> ChangeMask:
    last: list[Mask] = []

    def change(_rows: TargetRows, row: int, sound: Mask) -> Mask:
        if row:
            return sound
        before = last[0] if last else sound
        last[:] = [sound]
        return before

    return change


MASK_OF_ANOTHER_ROW = _mask_fault(
    "none known: masks packed in the order of the requests and applied in that of the batch",
    _of_row_before,
    replace(MASKED, needs=("grammar", "several requests")),
)
"""The first row of a request's step has the mask of the request before it in the batch."""


def _end_allowed(rows: TargetRows, row: int, sound: Mask) -> Mask:
    if not row:
        return sound
    mask = sound.copy()
    mask[[*rows._eos_ids, *rows._params.stop_token_ids]] = True
    return mask


END_ALLOWED_INSIDE_ANSWER = _mask_fault("sgl-project/sglang#21723", lambda: _end_allowed)
"""Inside a draft an end token is always allowed, so an answer may end where it is not whole."""
