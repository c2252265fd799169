"""Plain decoding one token at a time against speculation: how many positions' logits differ in any bit."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine import proposers, verify
from engine.core.errors import NumericsRefused
from engine.core.types import Proposal, Protocol, QKind, RecordLevel, Request, SamplingParams, Tree
from engine.decode.loop import Loop, LoopOptions
from engine.models import numerics
from engine.models.decoder.lean import LeanModel
from engine.models.decoder.step_graphs import graphs_on
from engine.models.loading import LoadedModel, load_model, load_parts
from engine.models.probe.choose import choose
from engine.proposers.interface import Context, PlainProposer, Proposer, ProposerFacts, ProposerParts
from engine.record.trace import Trace, decode
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of

PROMPTS = Path(__file__).parents[3] / "suites" / "prompts"
LENGTH = 150
CAPACITY = 800
GAMMA = 12


@dataclass(frozen=True)
class Case:
    mode: str
    dtype: str
    proposer: str
    threads: int = 1
    rows: int = 1
    device: str = "cpu"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f"-{self.device}"
        return f"{self.mode}-{self.dtype}-{self.proposer}-{self.threads}t-{self.rows}b{where}"

    @property
    def protocol(self) -> Protocol:
        return Protocol.GREEDY if self.proposer == "ngram" else Protocol.GUMBEL


@functools.cache
def refused(mode: str, dtype: str, threads: int) -> bool:
    """Whether this machine's kernels break a mode's promise: bfloat16 products on tiles (AMX) depend on their rows.

    Then the mode is refused by name, and nothing is left to compare. In float32 it is promised on every machine
    that the tests run on.
    """
    parts = load_parts("bundled:target", dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        choose(mode, parts, "bundled:target")
    except NumericsRefused:
        assert dtype == "bfloat16"
        assert torch.cpu._is_amx_tile_supported()
        return True
    finally:
        torch.set_num_threads(before)
    return False


@dataclass(frozen=True)
class Compared:
    positions: int
    differing: int
    same_tokens: bool


class OracleTrees:
    """Random trees around the known continuation: right tokens in random places, wrong siblings, some with children."""

    facts = ProposerFacts("oracle_trees", shape="tree", q_kind=QKind.ONE_HOT, can_couple=False, state="none")

    def __init__(self, known: dict[str, tuple[int, ...]]):
        self._known = known
        self._rng = np.random.default_rng(5)

    def start(self, context: Context) -> None:
        pass

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        return [Proposal(self._tree(context), QKind.ONE_HOT) for context in contexts]

    def _tree(self, context: Context) -> Tree:
        done = len(context.history) - len(context.request.prompt)
        right = self._known[context.request.id][done:]
        tokens: list[int] = []
        parents: list[int] = []
        trunk = -1
        for token in right[: int(self._rng.integers(0, 7))]:
            siblings = [token if self._rng.random() < 0.9 else token ^ 1, *self._rng.integers(3, 2000, 2).tolist()]
            places = self._rng.permutation(3)[: int(self._rng.integers(1, 4))]
            first = len(tokens)
            tokens += [siblings[place] for place in places]
            parents += [trunk] * len(places)
            trunk = first + int(np.argmin(places)) if 0 in places else first
        return Tree(tuple(tokens[: context.budget]), tuple(parents[: context.budget]))

    def observe(self, context: Context, verdict: object) -> None:
        pass

    def finish(self, row: int) -> None:
        pass


@functools.lru_cache
def loaded(name: str, dtype: str, device: str = "cpu") -> LoadedModel:
    return load_model(f"bundled:{name}", dtype=dtype, device=device)


@functools.lru_cache
def target(mode: str, dtype: str, device: str = "cpu") -> LeanModel:
    model = loaded("target", dtype, device).model
    assert isinstance(model, LeanModel)
    graphs = graphs_on(model.device)
    return LeanModel(model.config, model.weights, model.eos_ids, model.facts, numerics.load(mode), graphs)


@functools.lru_cache
def texts() -> tuple[int, ...]:
    tokenizer = loaded("target", "float32").tokenizer
    lines = [line for name in ("tools", "json") for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]
    chats = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in lines]
    return tuple(token for chat in chats for token in tokenizer(chat, add_special_tokens=False)["input_ids"])


def requests(count: int, protocol: Protocol) -> list[Request]:
    """Prompts of 40 to 500 tokens, so that generations cross the borders of tiles and buckets."""
    greedy = protocol is Protocol.GREEDY
    sampling = SamplingParams(0.0 if greedy else 0.8, max_new_tokens=LENGTH, ignore_eos=True, seed=11)
    lengths = [40 + 97 * i % 461 for i in range(count)]
    starts = [61 * i % 3000 for i in range(count)]
    return [
        Request(f"r{i}", texts()[start : start + length], sampling, stream_of(f"r{i}"))
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]


@functools.lru_cache
def baseline(
    mode: str, dtype: str, protocol: Protocol, count: int, width: int, device: str = "cpu"
) -> dict[str, Trace]:
    """Plain decoding on `width` threads: that their number does not matter is promised by `exact` alone."""
    with threads(width):
        return run(target(mode, dtype, device), PlainProposer(), protocol, requests(count, protocol), rows=1)


def run(
    model: LeanModel, proposer: Proposer, protocol: Protocol, wanted: Sequence[Request], rows: int
) -> dict[str, Trace]:
    options = LoopOptions(rows, GAMMA, CAPACITY, RecordLevel.SCALARS)
    loop = Loop(model, proposer, verify.load(protocol), lambda tokens: "", options)
    return {each.request.id: decode(each.trace) for each in loop.run(wanted)}


def compare(case: Case, count: int) -> Compared:
    """Speculate on `count` requests as the case says, and hold every position against plain decoding."""
    plain = baseline(case.mode, case.dtype, case.protocol, count, case.threads, case.device)
    with threads(case.threads):
        wanted = requests(count, case.protocol)
        model = target(case.mode, case.dtype, case.device)
        found = run(model, make_proposer(case, plain), case.protocol, wanted, case.rows)
    positions = differing = 0
    for name, trace in found.items():
        shared = agreeing(trace.tokens, plain[name].tokens)
        positions += shared
        differing += int(np.sum(trace.logits_digest[:shared] != plain[name].logits_digest[:shared]))
    return Compared(positions, differing, all(found[name].tokens == plain[name].tokens for name in plain))


def make_proposer(case: Case, plain: dict[str, Trace]) -> Proposer:
    if case.proposer == "trees":
        return OracleTrees({name: trace.tokens for name, trace in plain.items()})
    rule = verify.load(case.protocol).facts.draft_rule
    draft = loaded("draft", "float32", case.device).model
    return proposers.build(case.proposer, ProposerParts(case.rows, CAPACITY, rule, draw, (), draft))


def agreeing(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Positions with equal prefixes: up to the first difference, that one included."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index + 1
    return min(len(ours), len(theirs))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
