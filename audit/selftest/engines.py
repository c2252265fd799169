"""The positive control in real engines: chains of an exactly known law, sound and with a planted leak.

Each engine whose package this Python has runs the chain, and one whose target draws a share of its tokens from the
draft's law: its converted files are the leaking chain's, and its manifest claims the sound one. Ways of speculating
that are known to break the law are left out: the control tests the statistics, not the engine.
"""

import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from audit.selftest import chains
from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.process.convert import MANIFEST, ModelConverter, convert
from engine.core.registry import CONVERTERS, resolve
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.models.loading import open_source

WAYS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "onnx": {
        "plain": {},
        "draft_model": {"proposer": "draft_model", "gamma": 4, "draft": "draft"},
        "ngram": {"proposer": "ngram", "gamma": 4, "options": {"ngram_size": 2}},
    },
    "openvino": {
        "plain": {},
        "prompt_lookup": {"proposer": "prompt_lookup", "gamma": 4, "options": {"max_ngram_size": 2}},
    },
    "gguf": {
        "plain": {},
        "draft_model": {"proposer": "draft_model", "gamma": 4, "draft": "draft"},
        "drawn_drafts": {"proposer": "draft_model", "gamma": 4, "draft": "draft", "options": {"probabilistic": True}},
        "ngram_simple": {"proposer": "ngram_simple", "gamma": 4, "options": {"size_n": 2}},
    },
}
"""By format of `audit convert`: the arms of its engine."""
COLUMNS: Final = ("engine", "arm", "chain", "tokens", "p", "leak", "verdict")


@dataclass(frozen=True, slots=True)
class ControlSize:
    """Requests of so many tokens each, and the share of the planted leak."""

    requests: int
    tokens: int
    leak: float


QUICK: Final = ControlSize(10, 1000, 0.1)
FULL: Final = ControlSize(60, 2000, 0.02)


@dataclass(frozen=True, slots=True)
class ControlResult:
    """One arm on one chain; `leak` is the planted share, 0 for the sound chain."""

    engine: str
    arm: str
    leak: float
    judged: chains.ChainJudgement

    @property
    def right(self) -> bool:
        """True if the chain departs exactly where a leak was planted."""
        return self.judged.departs == (self.leak > 0)

    def row(self) -> tuple[str, ...]:
        """Its row of the table."""
        chain = f"leak of {self.leak:.0%}" if self.leak else "sound"
        verdict = "departs" if self.judged.departs else "keeps the law"
        estimate = f"{self.judged.leak.share:+.4f}"
        tokens = f"{self.judged.tokens}"
        return (self.engine, self.arm, chain, tokens, f"{self.judged.p:.2g}", estimate, verdict)


@dataclass(frozen=True, slots=True)
class EngineControls:
    """The results, and in words each engine that could not run."""

    results: tuple[ControlResult, ...]
    skipped: tuple[str, ...]

    def failures(self) -> list[str]:
        """The results that are not as they must be."""
        wrong = [result for result in self.results if not result.right]
        return [f"exact law: {result.engine}, {result.arm}: p {result.judged.p:.2g}" for result in wrong]

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        rows = [dict(zip(COLUMNS, result.row(), strict=True)) for result in self.results]
        return {"results": rows, "skipped": list(self.skipped)}


def run_controls(size: ControlSize, note: Callable[[str], object]) -> EngineControls:
    """Every engine of `WAYS` that is installed."""
    results: list[ControlResult] = []
    skipped = []
    for kind in WAYS:
        converter: ModelConverter = resolve(CONVERTERS, kind, "format")
        program = converter.program
        if importlib.util.find_spec(program.package) is None:
            skipped.append(
                f"exact law: skipped for {program.name}, which this Python lacks (make {program.target} installs it)"
            )
            continue
        note(f"exact law in {program.name}")
        with tempfile.TemporaryDirectory(prefix="specaudit-chains-") as folder:
            results += controls_of(converter, Path(folder), size)
    return EngineControls(tuple(results), tuple(skipped))


def controls_of(converter: ModelConverter, folder: Path, size: ControlSize) -> Iterator[ControlResult]:
    """Every arm of one engine on the sound and on the leaking chain; `folder` is empty."""
    given = chains.tables(chains.SEED)
    made = {"target": given.target, "leaking": chains.leaking(given, size.leak).target, "draft": given.draft}
    for name, table in made.items():
        source = open_source(str(chains.write_chain(folder / name, table)))
        convert(converter, source, sys.executable, folder / f"{name}-converted")
    # the manifest of the leaking model names the source of the target
    places = (folder / "leaking-converted" / MANIFEST, folder / "target-converted" / MANIFEST)
    ours, theirs = (json.loads(place.read_text("utf-8")) for place in places)
    places[0].write_text(json.dumps({**ours, "source": theirs["source"]}), "utf-8")
    backend = open_backend(
        converter.backend or converter.program.package,
        {"target": ModelSource(str(folder / "target")), "draft": ModelSource(str(folder / "draft"))},
    )
    sampling = SamplingParams(temperature=1.0, max_new_tokens=size.tokens, seed=3)
    p, q = (chains.law(table, sampling) for table in (given.target, given.draft))
    requests = [
        Request(f"r{at}", (chains.FIRST + at % (chains.VOCABULARY - chains.FIRST),), sampling, stream=at)
        for at in range(size.requests)
    ]
    try:
        for arm, way in WAYS[converter.kind].items():
            for target, leak in (("target", 0.0), ("leaking", size.leak)):
                folders = {"target": str(folder / f"{target}-converted"), "draft": str(folder / "draft-converted")}
                plan = EngineSpec(
                    Protocol.CHAIN,
                    rows=1,
                    level=RecordLevel.TOKENS,
                    engine={"threads": 1, converter.kind: folders},
                    **way,
                )
                seen = walk_of(backend.arm(plan).generate(requests))
                yield ControlResult(converter.program.name, arm, leak, chains.judge_walk(seen, p, q))
    finally:
        getattr(backend, "close", lambda: None)()


def walk_of(answers: Any) -> chains.Walk:
    """The transitions of every answer. Raises RuntimeError: the engine did not answer."""
    before: list[int] = []
    token: list[int] = []
    for answer in answers:
        if answer.finish_reason is FinishReason.ERROR:
            raise RuntimeError(f"{answer.request.id}: {answer.facts['error']['message']}")
        before += [answer.request.prompt[-1], *answer.tokens[:-1]]
        token += answer.tokens
    return chains.Walk(np.array(before), np.array(token))
