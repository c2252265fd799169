"""Loops over scripted models, for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine import proposers, verify
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.decode.redraws import Redraws
from engine.models.scripted import ScriptedModel, blended_script, table_script
from engine.proposers.interface import PlainProposer, Proposer, ProposerParts, TargetSide
from engine.record.trace import Trace, decode
from engine.sampling.draw import SiblingRule, draw, draw_siblings
from engine.sampling.rng import stream_of


@dataclass(frozen=True)
class Setup:
    proposer: str | None = "draft_model"
    protocol: Protocol = Protocol.CHAIN
    gamma: int = 3
    vocabulary: int = 8
    rows: int = 1
    level: RecordLevel = RecordLevel.FULL
    likeness: float = 0.7
    eos_ids: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier_options: Mapping[str, Any] = field(default_factory=dict)


@functools.lru_cache
def _table(seed: int, vocabulary: int):
    return functools.lru_cache(maxsize=None)(table_script(seed, vocabulary))


def target_script(setup: Setup):
    return _table(1, setup.vocabulary)


def spell(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def draft_script(setup: Setup, number: int = 0):
    """The number-th draft's script: part a table of its own, part the target's."""
    return blended_script(_table(2 + number, setup.vocabulary), target_script(setup), setup.likeness)


def drafts_of(setup: Setup) -> tuple[ScriptedModel, ...]:
    return tuple(ScriptedModel(draft_script(setup, number), setup.vocabulary) for number in (0, 1))


def make_loop(
    setup: Setup,
    decode_text: Callable[[Sequence[int]], str] = spell,
    capacity: int = 512,
    proposer: Proposer | None = None,
    siblings: SiblingRule = draw_siblings,
    redraws: Redraws | None = None,
) -> Loop:
    """The setup's loop, with `proposer` instead of the setup's if one is given; its drafts are `redraws`, if given."""
    partial = draft_script(setup)  # what the target says when only a part of it runs
    target = ScriptedModel(target_script(setup), setup.vocabulary, eos_ids=setup.eos_ids, partial=partial)
    verifier = verify.load(setup.protocol, setup.verifier_options)
    options = LoopOptions(setup.rows, setup.gamma, capacity, setup.level)
    cache = target.new_cache(setup.rows, capacity)
    if proposer is None and setup.proposer is None:
        proposer = PlainProposer()
    elif proposer is None:
        first, *others = drafts_of(setup)
        rule, side = verifier.facts.draft_rule, TargetSide(target, cache)
        parts = ProposerParts(
            setup.rows,
            capacity,
            rule,
            draw,
            setup.eos_ids,
            first,
            setup.options,
            tuple(others),
            side,
            draw_siblings=siblings,
        )
        proposer = proposers.build(setup.proposer, parts if redraws is None else redraws.parts(parts))
    return Loop(target, proposer, verifier, decode_text, options, cache)


def requests(count: int, sampling: SamplingParams, vocabulary: int = 8) -> list[Request]:
    return [
        Request(
            f"r{i}", tuple((i * 7 + j * (i + 3)) % vocabulary for j in range(2 + i % 5)), sampling, stream_of(f"r{i}")
        )
        for i in range(count)
    ]


def generate(setup: Setup, wanted: Sequence[Request]) -> dict[str, Generation]:
    return {each.request.id: each for each in make_loop(setup).run(wanted)}


def traces(generations: Mapping[str, Generation]) -> dict[str, Trace]:
    return {name: decode(each.trace) for name, each in generations.items()}
