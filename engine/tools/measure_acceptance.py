"""Measured inputs for planning a tree on a pair: acceptance by level and rank, and the times of drafts and targets.

Acceptance is counted in real steps whose tree is complete: every node has `width` children, in `depth` levels, drawn
without replacement. A trial is a node that was reached and whose children were tried; the counts also hold for trees of
other shapes, which would have ended at the same nodes. Errors treat prompts as the unit: steps of one answer are alike.
The measurements hold for these prompts, this temperature and this machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.backends.interface import Engine
from engine.core.errors import InvalidRequest
from engine.core.types import Floats, Request
from engine.proposers.tree_planning import PlanningCosts, TreeShape, chain_shape, k_ary_shape
from engine.record.trace import StepView, Trace, decode, steps_of

Drafting = Callable[[TreeShape | None], Engine]
"""An arm of the pair under the tree rule that drafts a shape in every step; for None, one that does not draft."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its standard error, NaN with fewer than two prompts."""

    rate: float
    error: float


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceTrials:
    """Counts of R requests: accepted [R, D, W] by level and rank, tried [R, D] nodes whose children were tried."""

    accepted: Floats
    tried: Floats

    def by_rank(self) -> tuple[Estimate, ...]:
        """One acceptance vector for all levels: Sequoia's assumption."""
        return _ratios(self.accepted.sum(axis=1), self.tried.sum(axis=1))

    def by_level(self) -> tuple[tuple[Estimate, ...], ...]:
        """An acceptance vector for each level that was reached."""
        reached = int(np.count_nonzero(self.tried.sum(axis=0)))
        return tuple(_ratios(self.accepted[:, level], self.tried[:, level]) for level in range(reached))


@dataclass(frozen=True, slots=True)
class ShapeTiming:
    """The median times of steps with one shape, in microseconds, and of how many steps."""

    shape: TreeShape
    draft_us: float
    verify_us: float
    steps: int


@dataclass(frozen=True, slots=True)
class CostGrid:
    """Which trees are timed: chains of `chains` nodes and complete `width`-ary trees of `sizes` nodes."""

    chains: tuple[int, ...] = (1, 2, 4, 8)
    sizes: tuple[int, ...] = (4, 16, 31, 48)
    width: int = 4
    repeats: int = 2

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """The empty shape, which is plain decoding, and then the others."""
        chains = (chain_shape(size) for size in (0, *self.chains))
        return (*chains, *(k_ary_shape(self.width, size) for size in self.sizes))


def probe_shape(width: int, depth: int) -> TreeShape:
    """The complete tree in which acceptance is counted. Raises InvalidRequest: no width or no depth."""
    if min(width, depth) < 1:
        raise InvalidRequest(f"a probe has at least 1 child per node and 1 level, not {width} and {depth}")
    return k_ary_shape(width, sum(width ** (level + 1) for level in range(depth)))


def measure_trials(drafting: Drafting, requests: Sequence[Request], width: int, depth: int) -> AcceptanceTrials:
    """Acceptance of a pair on requests.

    Raises:
        InvalidRequest: a probe without levels, or requests too short for any step with the whole tree.
    """
    shape = probe_shape(width, depth)
    traces = [decode(generation.trace) for generation in drafting(shape).generate(requests)]
    trials = trials_of(traces, width, depth)
    if not trials.tried.any():
        raise InvalidRequest(f"no step had room for {depth} levels of {width} children; allow more new tokens")
    return trials


def trials_of(traces: Iterable[Trace], width: int, depth: int) -> AcceptanceTrials:
    """Counts from the steps that drafted the whole probe; the others, near an answer's end, are left out."""
    shape = probe_shape(width, depth)
    levels, ranks = (0, *shape.depths), shape.ranks
    accepted, tried = [], []
    for trace in traces:
        taken, nodes = np.zeros((depth, width)), np.zeros(depth)
        for step in steps_of(trace):
            if tuple(trace.node_parent[step.nodes].tolist()) != shape.parents:
                continue
            for parent, node in _decided(step, shape):
                nodes[levels[parent + 1]] += 1
                if node is not None:
                    taken[levels[parent + 1], ranks[node]] += 1
        accepted.append(taken)
        tried.append(nodes)
    return AcceptanceTrials(np.array(accepted).reshape(-1, depth, width), np.array(tried).reshape(-1, depth))


def _decided(step: StepView, shape: TreeShape) -> Iterator[tuple[int, int | None]]:
    """Every node whose children were tried, with the child that was accepted, if one was."""
    mapping: dict[int, int | None] = {}
    trace = step.trace
    for place in range(step.examined.start, step.examined.stop):
        node = int(trace.examined_node[place])
        parent = shape.parents[node]
        mapping[parent] = node if trace.examined_accepted[place] else mapping.get(parent)
    yield from mapping.items()


def _ratios(counts: Floats, trials: Floats) -> tuple[Estimate, ...]:
    """[R, W] counts over [R] trials: pooled shares and the linearised errors of a ratio over R prompts."""
    total, prompts = trials.sum(), len(trials)
    rates = counts.sum(axis=0) / total
    spread = ((counts - rates * trials[:, None]) ** 2).sum(axis=0)
    scale = prompts / (prompts - 1) if prompts > 1 else float("nan")
    errors = np.sqrt(scale * spread) / total
    return tuple(Estimate(float(rate), float(error)) for rate, error in zip(rates, errors, strict=True))


def measure_times(drafting: Drafting, requests: Sequence[Request], grid: CostGrid) -> tuple[ShapeTiming, ...]:
    """Times of whole steps with each shape, the shapes one after the other in every repeat so that drifts meet all.

    The backend's rows decide how many requests a step serves.
    """
    arms = [(shape, drafting(shape if len(shape) else None)) for shape in grid.shapes]
    times: Mapping[TreeShape, list[tuple[int, int]]] = {shape: [] for shape in grid.shapes}
    for _ in range(grid.repeats):
        for shape, engine in arms:
            for generation in engine.generate(requests):
                times[shape] += _step_times(decode(generation.trace), len(shape))
    return tuple(
        ShapeTiming(shape, float(draft), float(verify), len(item))
        for shape, item in times.items()
        if item
        for draft, verify in [np.median(item, axis=0)]
    )


def _step_times(trace: Trace, size: int) -> list[tuple[int, int]]:
    """Drafting and verifying times of the steps that drafted `size` tokens."""
    whole = trace.n_drafted == size
    return list(zip(trace.draft_us[whole].tolist(), trace.verify_us[whole].tolist(), strict=True))


def planning_costs(timed: Sequence[ShapeTiming]) -> PlanningCosts:
    """The planner's costs: drafting as so much per level and so much per node, by least squares without negatives.

    Shapes of the same number of nodes share their target time, as a mean over the shapes.

    Raises:
        InvalidRequest: no shape that drafts, or plain decoding was not timed.
    """
    drafting = [item for item in timed if len(item.shape)]
    if not drafting or len(drafting) == len(timed):
        raise InvalidRequest("costs need times of plain decoding and of at least one tree")
    level, node = _fit([(item.shape.depth, len(item.shape), item.draft_us) for item in drafting])
    tokens = sorted({len(item.shape) + 1 for item in timed})
    verify = [float(np.mean([item.verify_us for item in timed if len(item.shape) + 1 == count])) for count in tokens]
    return PlanningCosts(level, tuple(tokens), tuple(verify), node)


def _fit(rows: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """The a and b, at least 0, of a * levels + b * nodes = time; the fit minimises relative errors."""
    table = np.array([[levels / time, nodes / time] for levels, nodes, time in rows])
    ones = np.ones(len(table))
    both = np.linalg.lstsq(table, ones, rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = [float(column @ ones / (column @ column)) for column in table.T]
    return (alone[0], 0.0) if both[1] < 0 else (0.0, alone[1])
