"""The whole self-test as independent pieces of work, spread over processes, in its default and its quick size.

Every piece depends only on its seeds, and results are sorted, so the number of processes affects only the run time.
"""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from audit.errors import UserError
from audit.selftest import battery
from audit.selftest.alarms import Alarms, CleanResult, collect, try_clean
from audit.selftest.default_suite import DefaultDetection, detect_by_default
from audit.selftest.detect import CheckDetection, Detection, DetectionLimits, catches, detect, seek
from audit.selftest.mutation import KINDS, MutatedArm, mutate
from audit.selftest.scenarios import clean_arms
from audit.text.schema_errors import suggestion
from engine import faults


@dataclass(frozen=True, slots=True)
class SelfTestPlan:
    """The pieces to run. `complete` is True if every registered fault is included."""

    faults: tuple[str, ...]
    limits: DetectionLimits
    clean: int
    clean_tokens: int
    jobs: int
    complete: bool


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The results of the self-test."""

    plan: SelfTestPlan
    detections: tuple[Detection, ...]
    alarms: Alarms
    sought: tuple[CheckDetection, ...] = ()
    """Checks that were never needed, run by themselves; only filled if every fault ran."""


@dataclass(frozen=True, slots=True)
class MutationPlan:
    """Clean arms of each kind, and the share of changes that is tried."""

    seeds: int
    share: float


def run(plan: SelfTestPlan, announce: Callable[[str], None]) -> SelfTestResult:
    """Run everything; `announce` receives a line per fault and per hundred clean arms."""
    detections: dict[str, Detection] = {}
    results: list[CleanResult] = []
    with _workers(plan.jobs) as spread:
        for outcome in spread(partial(detect, limits=plan.limits), plan.faults):
            detections[outcome.fault] = outcome
            announce(_line(outcome, len(detections), len(plan.faults)))
        idle = battery.uncaught(catches(detections.values())) if plan.complete else ()
        sought = {item.check: item for item in spread(partial(seek, limits=plan.limits), idle)}
        for result in spread(partial(try_clean, tokens=plan.clean_tokens), clean_arms(plan.clean)):
            results.append(result)
            if len(results) % 100 == 0:
                announce(f"{len(results)} of {plan.clean} clean arms")
    results.sort(key=lambda item: item.arm.seed)
    return SelfTestResult(
        plan, tuple(detections[name] for name in plan.faults), collect(results), tuple(sought[name] for name in idle)
    )


def run_by_default(plan: SelfTestPlan, announce: Callable[[str], None]) -> tuple[DefaultDetection, ...]:
    """Run the faults of a plan in default suites; `announce` receives a line per fault."""
    detections: dict[str, DefaultDetection] = {}
    with _workers(plan.jobs) as spread:
        for result in spread(partial(detect_by_default, limits=plan.limits), plan.faults):
            detections[result.fault] = result
            by = ", ".join(result.caught_by) or "-"
            announce(f"[{len(detections)}/{len(plan.faults)}] {result.fault}: {result.tokens} {by}")
    return tuple(detections[name] for name in plan.faults)


def run_mutations(plan: MutationPlan, jobs: int, announce: Callable[[str], None]) -> tuple[MutatedArm, ...]:
    """Change the records of clean arms; `announce` receives a line per arm."""
    pieces = [(kind, seed) for kind in KINDS for seed in range(plan.seeds)]
    arms: dict[tuple[str, int], MutatedArm] = {}
    with _workers(jobs) as spread:
        for arm in spread(partial(_mutate, share=plan.share), pieces):
            arms[arm.kind, arm.seed] = arm
            survived = sum(not change.noticed for change in arm.mutations)
            changes = f"{len(arm.mutations)} changes, {survived} survive"
            announce(f"[{len(arms)}/{len(pieces)}] {arm.kind}, seed {arm.seed}: {changes}")
    return tuple(arms[piece] for piece in pieces)


def _line(detection: Detection, done: int, of: int) -> str:
    views = (f"{view} {item.tokens if item.caught else '-'}" for view, item in detection.sights.items())
    return f"[{done}/{of}] {detection.fault}: {', '.join(views)}"


def _mutate(piece: tuple[str, int], share: float) -> MutatedArm:
    return mutate(*piece, share)


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Gives a `map` in one or several processes, whose results come as they finish."""
    if jobs == 1:
        _one_thread()
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_one_thread) as pool:
        yield pool.imap_unordered


def _one_thread() -> None:
    """Set one torch thread: tiny models run faster on one, and the processes share the cores."""
    import torch

    torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes; `faults` empty means all."""

    limits: DetectionLimits
    clean: int
    clean_tokens: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PresetOverrides:
    """The user's overrides; None keeps the preset's value."""

    seeds: int | None = None
    most: int | None = None
    most_outside: int | None = None
    clean: int | None = None


FULL: Final = Preset(DetectionLimits(seeds=20, record=200_000, outside=4096), clean=1000, clean_tokens=512)
FULL_MUTATIONS: Final = MutationPlan(seeds=3, share=1.0)
QUICK_MUTATIONS: Final = MutationPlan(seeds=1, share=0.02)
QUICK: Final = Preset(
    DetectionLimits(seeds=3, record=1024, outside=256),
    clean=60,
    clean_tokens=256,
    faults=(
        *("argmax_draft_soft_q", "lenient_10_percent", "resample_from_p", "accepts_everything", "greedy_accepts_top2"),
        *("requests_share_numbers", "number_reused_across_positions", "noise_keyed_by_draw", "seed_ignored"),
        *("kv_not_rolled_back", "target_rows_shifted", "tree_mask_leaks", "penalties_per_step"),
        *("tokens_after_end_token", "logprobs_zero"),
    ),
)
"""Gross faults, at least one per part of the engine."""


def planned(preset: Preset, chosen: Sequence[str], asked: PresetOverrides, jobs: int) -> SelfTestPlan:
    """Apply the user's overrides to the preset. Raises UserError: the fault is unknown."""
    unknown = [name for name in chosen if name not in faults.REGISTRY]
    if unknown:
        raise UserError(f"unknown fault {unknown[0]!r}; {suggestion(unknown[0], list(faults.REGISTRY))}")
    names = tuple(dict.fromkeys(chosen)) or preset.faults or tuple(faults.REGISTRY)
    most = asked.most or preset.limits.record
    return SelfTestPlan(
        faults=names,
        limits=DetectionLimits(
            seeds=asked.seeds or preset.limits.seeds,
            record=most,
            outside=min(most, asked.most_outside or preset.limits.outside),
        ),
        clean=preset.clean if asked.clean is None else asked.clean,
        clean_tokens=preset.clean_tokens,
        jobs=jobs,
        complete=set(names) == set(faults.REGISTRY),
    )
