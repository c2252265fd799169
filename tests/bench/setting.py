"""What every benchmark starts from: models, prompts, and an engine over them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engine
from audit.sweep.sweep import Clock
from engine import proposers, verify
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import open_models
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.decoder.lean import LeanModel, load_folder
from engine.models.files.folder import open_folder
from engine.models.interface import Forward, Placement, SlotCache, TargetModel, WantedOutputs
from engine.models.loading import DTYPES
from engine.models.numerics import DRAFTING
from engine.proposers.interface import PlainProposer, ProposerParts
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of

REFERENCE = Path(engine.__file__).parent / "bundled"
PROMPTS = Path(__file__).parents[2] / "suites" / "prompts"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
TEMPLATED = ("tools", "json", "safety", "chat")


@dataclass(frozen=True)
class Setting:
    """How one benchmark runs. `prompts` is per domain; no `groups` means the benchmark's own.

    `mode` is the target's numerics, `draft_mode` the draft's; by default those of a suite.
    """

    target: str
    draft: str
    rounds: int = 7
    prompts: int = 4
    length: int = 128
    gamma: int = 4
    clock_name: str = "wall"
    groups: tuple[str, ...] = ()
    quick: bool = False
    dtype: str = "float32"
    draft_dtype: str = "float32"
    mode: str = "ordered"
    draft_mode: str = DRAFTING
    device: str = "cpu"

    @property
    def clock(self) -> Clock:
        return CLOCKS[self.clock_name]

    def chosen(self, *default: str) -> tuple[str, ...]:
        return self.groups or (default[:1] if self.quick else default)


@dataclass(frozen=True)
class Pair:
    target: LeanModel
    draft: LeanModel


def bundled_pair() -> tuple[str, str]:
    medium = (REFERENCE / "medium" / "config.json").exists() and (REFERENCE / "medium_draft" / "config.json").exists()
    return ("bundled:medium", "bundled:medium_draft") if medium else ("bundled:target", "bundled:draft")


def folder_of(source: str) -> Path:
    kind, _, name = source.partition(":")
    return REFERENCE / name if kind == "bundled" else Path(source)


def lean(source: str, dtype: str = "float32", mode: str = "fast", device: str = "cpu") -> LeanModel:
    """Our own forward over a folder's weights, in a numerics mode."""
    folder = open_folder(folder_of(source), source)
    return load_folder(folder, DTYPES[dtype], {"device": device}, mode).model


def lean_pair(setting: Setting) -> Pair:
    """The setting's models, as a suite would run them."""
    target = lean(setting.target, setting.dtype, setting.mode, setting.device)
    return Pair(target, lean(setting.draft, setting.draft_dtype, setting.draft_mode, setting.device))


def requests_of(setting: Setting, group: str) -> list[Request]:
    """A domain's first prompts, or those of the four templated ones; answers end where the model ends them."""
    engine = open_models({"target": ModelSource(setting.target)}).arm(EngineSpec(Protocol.GREEDY))
    sampling = SamplingParams(max_new_tokens=setting.length)
    found = []
    for domain in TEMPLATED if group == "templated" else (group,):
        for line in (PROMPTS / f"{domain}.jsonl").read_text().splitlines()[: setting.prompts]:
            row = json.loads(line)
            prompt = Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))
            found.append(Request(row["id"], engine.encode(prompt), sampling, stream_of(row["id"])))
    return found


@dataclass
class Counts:
    """What a model did since it was last reset: decoding steps, their cells and tokens, time reading prompts."""

    steps: int = 0
    cells: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0


@dataclass
class CountedModel:
    """A model that counts. Prompts are the forwards that want no logits."""

    model: TargetModel
    clock: Clock
    counts: Counts = field(default_factory=Counts)

    @property
    def vocabulary(self) -> int:
        return self.model.vocabulary

    @property
    def context(self) -> int:
        return self.model.context

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.model.eos_ids

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.model.facts

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        return self.model.new_cache(rows, capacity)

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        began = self.clock()
        result = self.model.forward(cache, placement, want)
        if want.logits:
            self.counts.steps += 1
            self.counts.cells += placement.tokens.numel()
            self.counts.tokens += sum(placement.lengths)
        else:
            self.counts.prompt_seconds += self.clock() - began
        return result

    def take(self) -> Counts:
        """The counts, which begin anew."""
        taken, self.counts = self.counts, Counts()
        return taken


@dataclass(frozen=True)
class Engine:
    """Our loop, greedy; built anew for each run, as the native backend does."""

    target: TargetModel
    draft: TargetModel | None = None
    proposer: str | None = None
    gamma: int = 0
    rows: int = 1
    level: RecordLevel = RecordLevel.TOKENS
    record: bool = True
    scripted: float | None = None
    """Mean tokens of a step, at which drafts are accepted whatever they are; None verifies them."""

    def run(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        if self.scripted is None:
            verifier = verify.load(Protocol.GREEDY)
        else:
            verifier = verify.load(Protocol.SYNTHETIC, {"length": self.scripted})
        longest = max(len(each.prompt) + each.sampling.max_new_tokens for each in requests)
        capacity = min(longest + self.gamma, self.target.context)
        rows = min(self.rows, len(requests))
        parts = ProposerParts(rows, capacity, verifier.facts.draft_rule, draw, self.target.eos_ids, self.draft, {})
        proposer = proposers.build(self.proposer, parts) if self.proposer else PlainProposer()
        options = LoopOptions(rows, self.gamma, capacity, self.level, self.record)
        return tuple(Loop(self.target, proposer, verifier, lambda _: "", options).run(requests))


def tokens_in(generations: Sequence[Generation]) -> int:
    return sum(len(each.tokens) for each in generations)
