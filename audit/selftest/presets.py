"""Sizes of the self-test: the default and the quick one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from audit.errors import UserError
from audit.selftest.detect import DetectionLimits
from audit.selftest.work import SelfTestPlan
from audit.text.schema_errors import suggestion
from engine import faults


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
QUICK: Final = Preset(
    DetectionLimits(seeds=3, record=1024, outside=256),
    clean=60,
    clean_tokens=256,
    faults=(
        "argmax_draft_soft_q",
        "lenient_10_percent",
        "resample_from_p",
        "accepts_everything",
        "greedy_accepts_top2",
        "requests_share_numbers",
        "number_reused_across_positions",
        "noise_keyed_by_draw",
        "seed_ignored",
        "kv_not_rolled_back",
        "target_rows_shifted",
        "tree_mask_leaks",
        "penalties_per_step",
        "tokens_after_end_token",
        "logprobs_zero",
    ),
)
"""Gross faults, at least one per part of the engine."""


def planned(preset: Preset, chosen: Sequence[str], asked: PresetOverrides, jobs: int) -> SelfTestPlan:
    """Apply the user's overrides to the preset.

    Raises:
        UserError: the fault is unknown.
    """
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
