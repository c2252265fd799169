"""``python -m engine.tools.plan_tree``: the best tree for `sequoia` on a pair, prompts, temperature and machine.

Measures acceptance and times (`engine.tools.measure_acceptance`), plans (`engine.proposers.tree_planning`), and
compares the chosen tree with chains and complete k-ary trees.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.backends.engine_spec import Backend, EngineSpec, ModelSource
from engine.backends.interface import Engine, Prompt
from engine.backends.native.backend import open_models
from engine.core.errors import EngineError, InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.proposers.tree_planning import (
    PlanningCosts,
    Rates,
    TreeShape,
    chain_shape,
    choose_shape,
    expected_tokens,
    k_ary_shape,
)
from engine.sampling.rng import stream_of
from engine.tools import measure_acceptance

DEEPEST = 12
TIMED = 6
"""Most prompts whose steps are timed: medians need fewer steps than shares."""


@dataclass(frozen=True, slots=True)
class TreeCandidate:
    """A tree and its expectations: tokens per step, microseconds per step, speed-up over plain decoding."""

    name: str
    parents: tuple[int, ...]
    expected_tokens: float
    step_us: float
    speedup: float


@dataclass(frozen=True, slots=True)
class TreePlan:
    """The chosen tree, its rivals, and the measurements behind both; an empty tree means that drafting is not expected
    to pay.
    """

    chosen: TreeCandidate
    depth: int
    rivals: tuple[TreeCandidate, ...]
    by_rank: tuple[measure_acceptance.Estimate, ...]
    by_level: tuple[tuple[measure_acceptance.Estimate, ...], ...]
    trials: tuple[int, ...]
    costs: PlanningCosts

    @property
    def rates(self) -> tuple[tuple[float, ...], ...]:
        """The plan's input: an acceptance vector per level."""
        return rates_by_level(self.by_level)

    @property
    def options(self) -> dict[str, Any]:
        """The proposer's options for the chosen tree."""
        return {"rates": rates_text(self.rates), "depth": self.depth, "size": len(self.chosen.parents)}


def rates_by_level(estimates: Sequence[Sequence[measure_acceptance.Estimate]]) -> tuple[tuple[float, ...], ...]:
    """The rates alone."""
    return tuple(tuple(item.rate for item in level) for level in estimates)


def rates_text(rates: Sequence[Sequence[float]]) -> str:
    """The rates as the proposer's option, cut to 4 digits so that no sum passes 1."""
    return "/".join(",".join(f"{int(rate * 1e4) / 1e4:g}" for rate in level) for level in rates)


def make_plan(
    trials: measure_acceptance.AcceptanceTrials, costs: PlanningCosts, sizes: Sequence[int], depths: Sequence[int]
) -> TreePlan:
    """The tree with the most expected tokens per second among the sizes and depths, and rivals of its size.

    Where no tree is expected to pay, the rivals have the largest of the sizes.
    """
    by_level = trials.by_level()
    rates, width = rates_by_level(by_level), trials.accepted.shape[2]
    chosen = choose_shape(rates, costs, [0, *sizes], depths).planned.shape
    size = len(chosen) or max(sizes)
    fastest = max(map(chain_shape, range(1, size + 1)), key=lambda chain: candidate("", chain, rates, costs).speedup)
    rivals = [("chain of the size", chain_shape(size)), ("fastest chain", fastest)]
    rivals += [(f"{k}-ary tree of the size", k_ary_shape(k, size)) for k in range(2, width + 1)]
    return TreePlan(
        chosen=candidate("chosen", chosen, rates, costs),
        depth=max(1, chosen.depth),
        rivals=tuple(candidate(name, shape, rates, costs) for name, shape in rivals),
        by_rank=trials.by_rank(),
        by_level=by_level,
        trials=tuple(int(count) for count in trials.tried.sum(axis=0)[: len(by_level)]),
        costs=costs,
    )


def candidate(name: str, shape: TreeShape, rates: Rates, costs: PlanningCosts) -> TreeCandidate:
    """The expectations for a tree."""
    tokens, step = expected_tokens(shape, rates), costs.step_us(shape)
    return TreeCandidate(name, shape.parents, tokens, step, tokens * costs.target_us(1) / step)


def report(plan: TreePlan) -> str:
    """The plan in words: the proposer's options, the candidates, and how far the levels differ."""
    options = ", ".join(
        f'{key}: "{value}"' if key == "rates" else f"{key}: {value}" for key, value in plan.options.items()
    )
    head = [f"gamma: {len(plan.chosen.parents)}, options: {{{options}}}"]
    if not plan.chosen.parents:
        head = ["no tree is expected to pay"]
    lines = [
        f"{rival.name}: {len(rival.parents)} nodes, {rival.expected_tokens:.3f} tokens per step, "
        f"{rival.step_us:.0f} us, speed-up {rival.speedup:.2f}"
        for rival in (plan.chosen, *plan.rivals)
    ]
    levels = [
        f"level {level}, {count} trials: {_estimates(rates)}"
        for level, (rates, count) in enumerate(zip(plan.by_level, plan.trials, strict=True), 1)
    ]
    return "\n".join([*head, *lines, *levels, f"all levels: {_estimates(plan.by_rank)}"])


def _estimates(rates: Sequence[measure_acceptance.Estimate]) -> str:
    return ", ".join(f"{rate.rate:.3f} +- {rate.error:.3f}" for rate in rates)


def drafting_with(backend: Backend, rows: int) -> measure_acceptance.Drafting:
    """Arms of a workshop's `target` and `draft` that draft a given tree."""

    def arm(shape: TreeShape | None) -> Engine:
        if shape is None:
            return backend.arm(EngineSpec(Protocol.TREE, rows=rows, level=RecordLevel.TOKENS))
        options = {"shape": ",".join(map(str, shape.parents))}
        return backend.arm(EngineSpec(Protocol.TREE, "sequoia", len(shape), "draft", options, rows, RecordLevel.TOKENS))

    return arm


def read_requests(path: Path, engine: Engine, sampling: SamplingParams) -> list[Request]:
    """Requests from JSON lines with `messages` (and `tools`) or `prompt`, as in a suite's prompt files.

    Raises:
        InvalidRequest: an invalid line, named by its number, or an empty file.
    """
    result = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            name = f"{path.name}:{number}"
            prompt = _prompt(line, f"{path}:{number}")
            result.append(Request(name, engine.encode(prompt), sampling, stream_of(name)))
    if not result:
        raise InvalidRequest(f"{path}: no prompts; write one JSON object per line")
    return result


def _prompt(line: str, place: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict) or not (row.get("messages") or row.get("prompt")):
        raise InvalidRequest(f"{place}: a prompt needs the key messages or prompt")
    return Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, plan, print and, on request, write."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        plan = _plan(given)
    except (EngineError, OSError) as error:
        parser.error(str(error))
    if given.out:
        given.out.write_text(json.dumps(asdict(plan) | {"options": plan.options}, indent=2) + "\n", encoding="utf-8")
    print(report(plan))


def _plan(given: argparse.Namespace) -> TreePlan:
    sources = {"target": ModelSource(given.target, given.dtype, numerics=given.numerics)}
    backend = open_models(sources | {"draft": ModelSource(given.draft, given.dtype)})
    sampling = SamplingParams(temperature=given.temperature, max_new_tokens=given.tokens, seed=given.seed)
    drafting = drafting_with(backend, given.rows)
    requests = read_requests(given.prompts, drafting(None), sampling)
    trials = measure_acceptance.measure_trials(drafting, requests, given.width, given.levels)
    grid = measure_acceptance.CostGrid(sizes=tuple(sorted({4, given.most // 2, given.most})), width=given.width)
    timed = measure_acceptance.measure_times(drafting, requests[:: -(-len(requests) // TIMED)], grid)
    costs = measure_acceptance.planning_costs(timed)
    return make_plan(trials, costs, range(1, given.most + 1), range(1, DEEPEST + 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.tools.plan_tree", description="plan a tree for sequoia")
    parser.add_argument("--target", required=True, help="a folder, a .gguf file, bundled:NAME or hf:ORG/NAME")
    parser.add_argument("--draft", required=True, help="a folder, a .gguf file, bundled:NAME or hf:ORG/NAME")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with messages or prompt")
    parser.add_argument("--out", type=Path, help="JSON file for the plan")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=64, help="most new tokens per prompt")
    parser.add_argument("--width", type=int, default=4, help="children per node of the probe")
    parser.add_argument("--levels", type=int, default=3, help="levels of the probe")
    parser.add_argument("--most", type=int, default=48, help="largest number of nodes to consider; at least 8")
    parser.add_argument("--rows", type=int, default=1, help="requests at once")
    parser.add_argument("--dtype", default="float32", help="float32, float64 or bfloat16")
    parser.add_argument("--numerics", default="fast", help="the target's numerics mode, as in a suite")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
