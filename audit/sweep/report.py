"""A sweep as table rows, sentences and a JSON document."""

import math
from collections.abc import Iterator
from typing import Any, Final

from audit.report.tables.verdicts import marked_name
from audit.store.base.canonical import jsonable, named
from audit.sweep.choice import Advice, MedianInterval, Recommendation
from audit.sweep.sweep import RECORD, ArmSweep, Sweep, SweepPoint

FORMAT: Final = 1
COLUMNS: Final = (
    *("gamma", "acceptance length", "draft acceptance", "tokens/forward", "tokens/s", "interval", "speed-up"),
    *("interval", "modelled", "rho", "sigma", "token cost"),
)


def table(arm: ArmSweep) -> list[list[Any]]:
    """Plain decoding, then one row per draft length."""
    rate = [_rounded(arm.plain.median), _span(arm.plain, 0)]
    plain = ["plain", None, None, 1.0, *rate, 1.0, None, None, None, None, None]
    return [plain, *(_row(point) for point in arm.points)]


def _row(point: SweepPoint) -> list[Any]:
    counts = point.acceptance
    return [
        point.gamma,
        _figure(counts.acceptance_length),
        _figure(counts.draft_acceptance_rate),
        _figure(counts.tokens_per_forward),
        _rounded(point.rate.median),
        _span(point.rate, 0),
        _figure(point.speedup.median),
        _span(point.speedup, 2),
        _figure(point.modelled),
        _figure(point.costs.rho),
        _figure(point.costs.sigma),
        _figure(point.costs.of_token(point.gamma)),
    ]


def _figure(value: float) -> str | None:
    """Format with two decimals, three below 0.1; None for a rate without drafts."""
    if not math.isfinite(value):
        return None
    return f"{value:.3f}" if abs(value) < 0.1 else f"{value:.2f}"


def _rounded(value: float) -> str:
    return f"{value:.0f}"


def _span(interval: MedianInterval, digits: int) -> str:
    return f"{interval.low:.{digits}f}..{interval.high:.{digits}f}"


def heading(arm: ArmSweep) -> str:
    """The heading of the arm's table."""
    spec = arm.arm
    parts = [f"{spec.proposer.kind}, {spec.verifier}, temperature {spec.sampling.temperature:g}"]
    parts += [f"{arm.requests} requests of at most {spec.sampling.max_new_tokens} tokens"]
    return f"{marked_name(spec.name, spec.fault)}: " + "; ".join(parts)


def recommendation(choice: Recommendation) -> str:
    """One sentence with the recommendation and its evidence."""
    interval, gamma = choice.confirmed, choice.gamma
    again = f"measured again, gamma {gamma} is {interval.median:.2f} times plain decoding ({_span(interval, 2)})"
    others = ", ".join(str(item) for item in choice.alike)
    ties = f"; not distinguishable from it: gamma {others}" if others else ""
    leads = {
        Advice.SPECULATE: f"recommended: gamma {gamma}",
        Advice.PLAIN: "do not speculate",
        Advice.NO_DIFFERENCE: "no difference shown",
        Advice.TOO_FEW_ROUNDS: "too few rounds to say",
    }
    return f"{leads[choice.advice]}: {again}{ties if choice.advice is Advice.SPECULATE else ''}"


def footing(sweep: Sweep) -> Iterator[str]:
    """The conditions of the measurement."""
    machine = sweep.hardware
    gpus = ", ".join(machine.get("gpus", ())) or "no GPU"
    yield f"machine: {machine.get('cpu', 'unknown')}, {machine.get('torch_threads')} torch thread(s), {gpus}"
    yield from (f"engine of {arm.arm.name}: {_engine(arm)}" for arm in sweep.arms)
    covers = sweep.arms[0].choice.confirmed.coverage
    yield (
        f"medians of {sweep.rounds} interleaved rounds after one warm-up; each interval holds the median with "
        f"{covers:.0%} coverage; times include the prefill; record level {RECORD.value}; batches of "
        f"{sweep.suite.batch_size}"
    )
    yield "a measurement of this machine at this time: nothing was checked and nothing was stored"


def _engine(arm: ArmSweep) -> str:
    """Dtype and numerics mode, if the engine reports them."""
    target = arm.config.get("target") or {}
    numerics = arm.config.get("numerics")
    mode = numerics.get("mode") if isinstance(numerics, dict) else numerics
    facts = (("dtype", target.get("dtype")), ("numerics", mode))
    reported = ", ".join(f"{name} {value}" for name, value in facts if value)
    return f"{arm.config.get('backend', 'unknown')}" + (f", {reported}" if reported else "")


def document(sweep: Sweep) -> dict[str, Any]:
    """The sweep as JSON types; rates in tokens per second, NaN becomes null."""
    suite = {"name": sweep.suite.name, "sha256": sweep.suite.sha256, "cases": sweep.cases}
    result = {
        "format": FORMAT,
        "suite": suite,
        "rounds": sweep.rounds,
        "record": RECORD,
        "batch_size": sweep.suite.batch_size,
        "hardware": sweep.hardware,
        "arms": [_arm(arm) for arm in sweep.arms],
    }
    content: dict[str, Any] = jsonable(result)
    return content


def _arm(arm: ArmSweep) -> dict[str, Any]:
    return {
        "name": arm.arm.name,
        "fault": arm.arm.fault,
        "requests": arm.requests,
        "config": arm.config,
        "plain": {"tokens_per_second": arm.plain},
        "points": [_point(point) for point in arm.points],
        "recommendation": arm.choice,
    }


def _point(point: SweepPoint) -> dict[str, Any]:
    counts = point.acceptance
    return {
        "gamma": point.gamma,
        **named(counts, "acceptance_length", "draft_acceptance_rate", "tokens_per_forward"),
        "tokens_per_second": point.rate,
        "speedup": point.speedup,
        "modelled_speedup": point.modelled,
        "rho": point.costs.rho,
        "sigma": point.costs.sigma,
        "token_cost": point.costs.of_token(point.gamma),
    }
