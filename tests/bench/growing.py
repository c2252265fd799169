"""Arms of the real engine over scripted models that grow: the first requests of a long run are a short run.

A seed is another pair of models, other prompts and other random numbers. Companion arms are as long as the candidate.
Reversed arms are reversed within what was added at a time. Knows nothing about checks and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level, RequestRecord
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import TOOLS, VOCABULARY, open_models
from engine.core.types import Generation, Protocol, Request, ToolOffer
from engine.faults.interface import Scenario
from engine.models.passes.reference_pass import ScriptedReference
from engine.models.scripted import table_script
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.audit.checks.anchor_arms import anchor_arm
from tests.audit.checks.simulator import record
from tests.support.scenarios import engine_spec

SEEDS_PER_WORLD = 16
"""Scripted seeds set aside for each seed: the target's, then the drafts'."""


def scripted_plan(scenario: Scenario, fault: str | None) -> EngineSpec:
    """The arm of an arena over scripted models."""
    if scenario.models != "scripted":
        raise ValueError("only arenas over scripted models can grow")
    return engine_spec(scenario, fault)


class Growing:
    """One seed's arms. `prompts` None gives every request a prompt of its own, a number lets them take turns."""

    def __init__(
        self,
        scenario: Scenario,
        fault: str | None,
        seed: int,
        kinds: Iterable[ArmKind] = (),
        prompts: int | None = None,
    ):
        plan, first = scripted_plan(scenario, fault), SEEDS_PER_WORLD * seed + 1
        shop = open_models({name: ModelSource(source) for name, source in scenario.sources(first).items()})
        self.sampling = replace(scenario.sampling, seed=seed)
        self._seed, self._prompts, self._done = seed, prompts, 0
        self._tools = ToolOffer(TOOLS) if scenario.tools else None
        self._reference = ScriptedReference(table_script(first, VOCABULARY), {})
        rule = Protocol.GREEDY if self.sampling.greedy else Protocol.GUMBEL
        plain = EngineSpec(rule, rows=plan.rows, stream=plan.stream)
        shapes = {
            ArmKind.CANDIDATE: plan,
            ArmKind.BASELINE: plain,
            ArmKind.CONTROL: replace(plain, rows=1),
            ArmKind.REPEAT: plan,
            ArmKind.ALONE: replace(plan, rows=1),
            ArmKind.REVERSED: plan,
            ArmKind.OTHER_GAMMA: replace(plan, gamma=plan.gamma // 2 or plan.gamma + 1),
        }
        kinds = tuple(kinds)
        self._anchored = ArmKind.ANCHOR in kinds
        self._reader = shop.arm(replace(plain, rows=1, level=plan.level)) if ArmKind.REREAD in kinds else None
        again = replace(plan, rows=1, mixed=False, beside=None, fault=None)
        self._drafter = shop.arm(again) if ArmKind.REDRAFT in kinds else None
        wanted = {kind for kind in (ArmKind.CANDIDATE, *kinds) if not kind.reads}
        self._backends = {kind: shop.arm(shapes[kind]) for kind in ArmKind if kind in wanted}
        self._arms = {
            kind: ArmRecord(str(kind), kind, Level.L4, engine.effective_config(), ())
            for kind, engine in self._backends.items()
        }

    def grown(self, tokens: int) -> Evidence:
        """The evidence once every request has been asked that `tokens` tokens may take."""
        count = -(-tokens // self.sampling.max_new_tokens)
        asked = [self._request(index) for index in range(self._done, count)]
        self._done = max(self._done, count)
        for kind in self._backends if asked else ():
            self._extend(kind, asked[::-1] if kind is ArmKind.REVERSED else asked)
        if self._anchored and asked:
            self._anchor(len(asked))
        if self._reader is not None and asked:
            self._again(ArmKind.REREAD, self._reader.reread_config(), self._reread)
        if self._drafter is not None and asked:
            self._again(ArmKind.REDRAFT, self._drafter.redraft_config(), self._redraft)
        others = {kind: arm for kind, arm in self._arms.items() if kind not in FIXED}
        candidate, baseline, control = (self._arms.get(kind) for kind in FIXED)
        assert candidate is not None
        return Evidence(candidate, baseline, control, others)

    def _request(self, index: int) -> Request:
        prompt, sample = (index, 0) if self._prompts is None else (index % self._prompts, index // self._prompts)
        numbers = np.random.default_rng([self._seed, prompt])
        name = f"r{prompt:05d}#{sample}"
        tokens = tuple(int(each) for each in numbers.integers(0, VOCABULARY, size=numbers.integers(3, 7)))
        return Request(name, tokens, self.sampling, stream_of(name), self._tools)

    def _extend(self, kind: ArmKind, asked: list[Request]) -> None:
        arm, made = self._arms[kind], []
        for each in self._backends[kind].generate(asked):
            case, _, sample = each.request.id.partition("#")
            told = record(decode(each.trace))
            made.append(replace(told, case_id=case, sample=int(sample), text=each.text, latency_us=each.latency_us))
        ordered = sorted((*arm.requests, *made), key=lambda each: (each.case_id, each.sample))
        self._arms[kind] = replace(arm, requests=tuple(ordered))

    def _anchor(self, added: int) -> None:
        candidate = self._arms[ArmKind.CANDIDATE]
        old = self._arms.get(ArmKind.ANCHOR)
        known = {each.key for each in old.requests} if old else set()
        new = tuple(each for each in candidate.requests if each.key not in known)
        assert len(new) == added
        made = anchor_arm(replace(candidate, requests=new), self._reference)
        ordered = sorted((*(old.requests if old else ()), *made.requests), key=lambda each: (each.case_id, each.sample))
        self._arms[ArmKind.ANCHOR] = replace(made, requests=tuple(ordered))

    def _reread(self, request: Request, recorded: RequestRecord) -> Generation:
        return self._reader.reread(request, recorded.tokens)

    def _redraft(self, request: Request, recorded: RequestRecord) -> Generation:
        return self._drafter.redraft(request, recorded.trace)

    def _again(self, kind: ArmKind, effective: Effective, follow: Callable[[Request, RequestRecord], Generation]):
        old = self._arms.get(kind)
        made = {each.key: each for each in old.requests} if old else {}
        for each in self._arms[ArmKind.CANDIDATE].requests:
            header = each.trace.header
            request = Request(header.request, header.prompt, header.sampling, header.stream)
            if each.key not in made:
                made[each.key] = replace(each, trace=decode(follow(request, each).trace))
        ordered = sorted(made.values(), key=lambda each: (each.case_id, each.sample))
        self._arms[kind] = ArmRecord(str(kind), kind, Level.L2, effective, tuple(ordered))


FIXED = (ArmKind.CANDIDATE, ArmKind.BASELINE, ArmKind.CONTROL)
