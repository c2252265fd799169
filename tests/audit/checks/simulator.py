"""A speculative decoder over an order-1 Markov target, exact by its rules or broken in one way.

Writes real traces. The rules are written out once more here, against the definitions, so that neither the engine's
verifiers nor the replay check is used to produce what the checks are tested on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from audit.evidence.records import ArmKind, ArmRecord, Level, RequestRecord
from engine.core.types import (
    Emitted,
    Examined,
    FinishReason,
    Proposal,
    Protocol,
    QKind,
    RecordLevel,
    Role,
    SamplingParams,
    StepOutcome,
    StepRecord,
    Tree,
)
from engine.record.effective import Effective
from engine.record.recorder import Recorder
from engine.record.trace import Trace, TraceHeader, decode
from engine.sampling.rng import Purpose, Randomness, stream_of
from engine.sampling.transforms import inverse_cdf, transform

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class World:
    """Logits [V, V] of the target and of the draft after each token."""

    target: np.ndarray
    draft: np.ndarray

    @property
    def vocabulary(self):
        return self.target.shape[0]


def world(seed, vocabulary=16, sharpness=1.5, drift=1.0) -> World:
    rng = np.random.default_rng(seed)
    target = sharpness * rng.standard_normal((vocabulary, vocabulary))
    draft = target + drift * rng.standard_normal((vocabulary, vocabulary))
    return World(target.astype(np.float32), draft.astype(np.float32))


SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=64, seed=7)
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=64, seed=7)


@dataclass(frozen=True)
class Setup:
    """What an arm runs. `draft`: soft, one_hot, coupled or none. `fault`: see `Decoder`."""

    protocol: Protocol = Protocol.CHAIN
    draft: str = "soft"
    gamma: int = 4
    sampling: SamplingParams = SAMPLED
    level: RecordLevel = RecordLevel.FULL
    fault: str = ""
    eos: tuple[int, ...] = ()
    noise: float = 0.0
    """Standard deviation of noise on the target's logits, another draw for every `noise_seed`."""
    noise_seed: int = 0
    stop: str = ""
    """Where a draft ends early, by rules that keep the law: flat (before a q without a large entry) or after_low."""


LOW = 0.2
"""What `stop` and the dropping faults call a low q."""


@dataclass(frozen=True)
class Laws:
    """p and q [V, V] after each token."""

    p: np.ndarray
    q: np.ndarray

    @classmethod
    def of(cls, world, sampling) -> Laws:
        sides = (world.target, world.draft)
        return cls(*(np.stack([transform(row, [0], 1, sampling, ()).p for row in side]) for side in sides))


class Decoder:
    """One request.

    Faults: argmax_draft, bf16_draft, drop_low, drop_before_flat, from_p, sqrt, wrong_bonus_row, stale_q, lenient,
    reuse, unverified.
    """

    def __init__(self, world, setup, name, laws=None):
        self.world, self.setup, self.name = world, setup, name
        self.laws = laws or Laws.of(world, setup.sampling)
        self.randomness = Randomness(setup.sampling.seed, stream_of(name))
        self.coins = np.random.default_rng([stream_of(name) % 2**32, 99])
        self.noise = np.random.default_rng([stream_of(name) % 2**32, setup.noise_seed])
        self.history = [1, 2]

    def p(self, last):
        return self.laws.p[last]

    def q(self, last):
        return self.laws.q[last]

    def run(self) -> Trace:
        setup = self.setup
        header = TraceHeader(
            request=self.name,
            level=setup.level,
            protocol=setup.protocol,
            lossless=True,
            proposer="simulated",
            vocabulary=self.world.vocabulary,
            stream=stream_of(self.name),
            sampling=setup.sampling,
            eos_ids=setup.eos,
            finish_reason=FinishReason.LENGTH,
            prompt=tuple(self.history),
            coupled_draft=setup.draft == "coupled",
        )
        recorder, start, step = Recorder(header), len(self.history), 0
        while True:
            proposal = self.propose()
            verdict = self.verify(proposal)
            verdict, reason = self.cut(verdict, start)
            path = [self.history[-1], *(each.token for each in verdict.emitted)]
            rows = np.stack([self.world.target[last] for last in path[:-1]])
            if setup.noise:
                rows = rows + self.noise.normal(0, setup.noise, rows.shape).astype(np.float32)
            scores = rows.astype(np.float64)
            recorder.step(StepRecord(step, len(self.history), proposal, verdict, rows, scores))
            self.history.extend(path[1:])
            step += 1
            if reason is not None:
                return decode(recorder.finish(reason))

    def propose(self) -> Proposal:
        setup, history = self.setup, list(self.history)
        if setup.draft == "none" or setup.gamma == 0:
            return Proposal()
        tokens, rows, numbers = [], [], []
        for _ in range(setup.gamma):
            q, position = self.q(history[-1]), len(history)
            if setup.stop == "flat" and q.max() < 2 * LOW:
                break
            u = self.randomness.uniform(position, Purpose.DRAFT)
            token = self.draw(q, position, u)
            if setup.fault == "drop_low" and q[token] < LOW:
                break
            if setup.fault == "drop_before_flat" and self.q(token).max() < 2 * LOW:
                break
            stale = setup.fault == "stale_q" and tokens
            rows.append(self.q(history[-2]) if stale else q)
            numbers.append(NAN if setup.draft == "coupled" else u)
            tokens.append(token)
            history.append(token)
            if setup.stop == "after_low" and q[token] < LOW:
                break
        if not tokens:
            return Proposal()
        tree = Tree.chain(tuple(tokens))
        if setup.draft == "one_hot" or setup.sampling.greedy:
            return Proposal(tree, QKind.ONE_HOT)
        return Proposal(tree, QKind.FULL, np.stack(rows), np.array(numbers))

    def draw(self, q, position, u):
        setup = self.setup
        if setup.draft == "one_hot" or setup.sampling.greedy or setup.fault == "argmax_draft":
            return int(np.argmax(q))
        if setup.draft == "coupled":
            return self.gumbel_argmax(q, position)
        if setup.fault == "bf16_draft":
            last = int(np.flatnonzero((self.laws.q == q).all(axis=1))[0])
            return inverse_cdf(transform(bfloat16(self.world.draft[last]), [0], 1, setup.sampling, ()).p, u)
        return inverse_cdf(q, u)

    def gumbel_argmax(self, p, position):
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(p) + self.randomness.gumbel(position, len(p))))

    def verify(self, proposal) -> StepOutcome:
        return self.chain(proposal) if self.setup.protocol is Protocol.CHAIN else self.match(proposal)

    def chain(self, proposal) -> StepOutcome:
        fault, emitted, examined, last = self.setup.fault, [], [], self.history[-1]
        for node, token in enumerate(proposal.tree.tokens):
            position, p = len(self.history) + node, self.p(last)
            q = np.eye(len(p))[token] if proposal.q is None else proposal.q[node]
            u = self.randomness.uniform(position, Purpose.ACCEPT)
            accepted = u * q[token] < p[token]
            if fault == "sqrt":
                accepted = u * u * q[token] < p[token]
            if fault == "lenient" and self.coins.random() < 0.1:
                accepted = True
            examined.append(Examined(node, float(p[token]), float(q[token]), u, bool(accepted)))
            if not accepted:
                left = np.maximum(p - q, 0.0)
                w = u if fault == "reuse" else self.randomness.uniform(position, Purpose.RESIDUAL)
                weights = p if fault == "from_p" or left.sum() == 0 else left
                new = inverse_cdf(weights, w)
                emitted.append(Emitted(new, Role.RECOVERED, node, float(p[new]), w))
                return StepOutcome(tuple(emitted), tuple(examined), float(left.sum()))
            emitted.append(Emitted(token, Role.ACCEPTED, node, float(p[token])))
            last = token
        count = len(proposal.tree)
        p = self.p(last)
        wrong = fault == "wrong_bonus_row" and count
        source = self.p(proposal.tree.tokens[-2] if count > 1 else self.history[-1]) if wrong else p
        w = self.randomness.uniform(len(self.history) + count, Purpose.BONUS)
        new = inverse_cdf(source, w)
        emitted.append(Emitted(new, Role.BONUS if count else Role.PLAIN, count, float(p[new]), w))
        return StepOutcome(tuple(emitted), tuple(examined))

    def match(self, proposal) -> StepOutcome:
        emitted, examined, last = [], [], self.history[-1]
        for node in range(len(proposal.tree) + 1):
            position, p = len(self.history) + node, self.p(last)
            own = self.gumbel_argmax(p, position) if self.setup.protocol is Protocol.GUMBEL else self.best(last)
            if node == len(proposal.tree):
                role = Role.BONUS if node else Role.PLAIN
                emitted.append(Emitted(own, role, node, float(p[own])))
                break
            token = proposal.tree.tokens[node]
            accepted = token == own
            if self.setup.fault == "unverified" and node == 0 and self.coins.random() < 0.2:
                accepted = True
            q = 1.0 if proposal.q is None else float(proposal.q[node, token])
            examined.append(Examined(node, float(p[token]), q, NAN, accepted))
            if not accepted:
                emitted.append(Emitted(own, Role.RECOVERED, node, float(p[own])))
                break
            emitted.append(Emitted(token, Role.ACCEPTED, node, float(p[token])))
            last = token
        return StepOutcome(tuple(emitted), tuple(examined))

    def best(self, last):
        return int(np.argmax(self.world.target[last]))

    def cut(self, verdict, start):
        """End tokens first, then the length; what was examined later goes too."""
        for count, each in enumerate(verdict.emitted, start=1):
            length = len(self.history) - start + count
            ended = each.token in self.setup.eos
            if ended or length == self.setup.sampling.max_new_tokens:
                reason = FinishReason.EOS if ended else FinishReason.LENGTH
                if count == len(verdict.emitted):
                    return verdict, reason
                return StepOutcome(verdict.emitted[:count], verdict.examined[:count]), reason
        return verdict, None


def bfloat16(row: np.ndarray) -> np.ndarray:
    """float32 numbers rounded to 8 significant bits."""
    return ((row.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def record(trace: Trace, sample=0, domain="chat", intact=True) -> RequestRecord:
    name = trace.header.request
    return RequestRecord(name, name, sample, domain, trace, trace.tokens, "", trace.header.finish_reason, 1, intact)


def arm(world: World, setup: Setup, requests: int, tag: str = "case", kind=ArmKind.CANDIDATE) -> ArmRecord:
    laws = Laws.of(world, setup.sampling)
    traces = [Decoder(world, setup, f"{tag}-{i}", laws).run() for i in range(requests)]
    records = tuple(record(trace, domain=("chat", "code")[i % 2]) for i, trace in enumerate(traces))
    return ArmRecord(kind.value, kind, Level.L4, Effective(), records)


def changed(arm: ArmRecord, request: int, **columns) -> ArmRecord:
    """The arm with columns of one request's trace replaced."""
    old = arm.requests[request]
    new = replace(old, trace=replace(old.trace, **columns))
    requests = (*arm.requests[:request], new, *arm.requests[request + 1 :])
    return replace(arm, requests=requests)


def put(column: np.ndarray, index: int, value) -> np.ndarray:
    """A copy of a column with one entry replaced."""
    copy = column.copy()
    copy[index] = value
    return copy
