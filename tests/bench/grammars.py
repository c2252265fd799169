"""`python -m tests.bench.grammars`: the cost of grammars on the bundled family.

Decodes the prompts of the packaged suite `structured` with and without a draft and prints, for each grammar library,
the share of masks in processor time, the second account included, and the speed-up of the draft under the grammar.
Processor time, because other work on the machine must not change the ratio. Compilation is printed apart, since it
happens once per grammar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import click

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.constraints.compiled import Grammars
from engine.core.registry import GRAMMARS
from engine.core.structured import constraint_of
from engine.core.types import Mask, Protocol, RecordLevel, Request, SamplingParams
from engine.sampling.rng import stream_of

PAIRS = {"small": ("target", "draft"), "medium": ("medium", "medium_draft")}


@dataclass
class Clock:
    """Seconds spent in masks, and in making constraints."""

    masks: float = 0.0
    making: float = 0.0


class TimedConstraint:
    def __init__(self, inner, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def __call__(self, generated: Sequence[int]) -> Mask:
        began = time.thread_time()
        mask = self._inner(generated)
        self._clock.masks += time.thread_time() - began
        return mask


@dataclass(slots=True)
class TimedGrammars(Grammars):
    clock: Clock = field(default_factory=Clock)

    def constraint(self, sampling: SamplingParams):
        began = time.thread_time()
        made = Grammars.constraint(self, sampling)
        self.clock.making += time.thread_time() - began
        return None if made is None else TimedConstraint(made, self.clock)


@dataclass(frozen=True)
class Timed:
    """One arm: seconds of decoding, of masks in it, and of making constraints before and in it."""

    total: float
    masks: float
    making: float
    tokens: int


def timed(backend, proposer: str | None, library: str, prompts: int) -> Timed:
    spec = EngineSpec(
        Protocol.GREEDY,
        rows=8,
        level=RecordLevel.SCALARS,
        proposer=proposer,
        gamma=4 if proposer else 0,
        draft="draft" if proposer else None,
    )
    engine = backend.arm(spec)
    engine._grammars = grammars = TimedGrammars(engine._spell, engine._target.eos_ids)
    lines = files("suites").joinpath("prompts/structured.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = []
    for row in map(json.loads, lines[:prompts]):
        params = SamplingParams(max_new_tokens=96, structured=constraint_of(row["structured"], library))
        prompt = engine.encode(Prompt(messages=tuple(row["messages"])))
        wanted.append(Request(row["id"], prompt, params, stream_of(row["id"])))
    engine.require(wanted)
    compiled = grammars.clock.making
    began = time.process_time()
    tokens = sum(len(each.tokens) for each in engine.generate(wanted))
    total = time.process_time() - began
    return Timed(total, grammars.clock.masks, compiled, tokens)


@click.command()
@click.option("--prompts", type=click.IntRange(1, 120), default=20, show_default=True)
@click.option("--pair", type=click.Choice(list(PAIRS)), default="medium", show_default=True, help="Bundled models.")
def main(prompts: int, pair: str) -> None:
    """Measure and print."""
    names = zip(("target", "draft"), PAIRS[pair], strict=True)
    backend = open_backend("native", {name: ModelSource(f"bundled:{source}") for name, source in names})
    for library in GRAMMARS:
        plain, draft = (timed(backend, each, library, prompts) for each in (None, "draft_model"))
        click.echo(
            f"{library}: masks take {draft.masks / draft.total:.1%} of speculative decoding "
            f"({draft.masks / draft.tokens * 1e6:.0f} us per token), speed-up {plain.total / draft.total:.2f}, "
            f"compilation {draft.making:.2f} s for {prompts} grammars"
        )


if __name__ == "__main__":
    main()
