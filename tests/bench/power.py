"""`python -m tests.bench.power`: how often each check calls a fault a fault, by the number of tokens.

Faults of the catalogue over scripted models, and the same arm without one. Writes docs/checks/power/NAME.json and
NAME.svg, and one sentence with the picture into docs/checks/NAME.md. A point counts seeds; a seed is a pair of models,
and its larger arms begin with its smaller ones, so that the points of one line are not independent. A line ends early
where all seeds were seen at two sizes. A check that has no plan here is given three faults that break its claim.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from audit.selftest.battery import BY_FELLOWS
from engine import faults
from tests.bench.growing import Growing
from tests.bench.svg import Curve, chart
from tests.support.served import served_arm

PAGES = Path(__file__).parents[2] / "docs" / "checks"
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
MARKER = "<!-- power -->"
POWER = 0.9
MANY_SEEDS_UP_TO = 1024
PAIRED = (ArmKind.BASELINE, ArmKind.CONTROL)
RERUNS = (ArmKind.REPEAT, ArmKind.ALONE, ArmKind.REVERSED)


@dataclass(frozen=True)
class Plan:
    """Faults to show, and the arms in which to show them.

    most: tokens of the largest; the smallest is one request.
    kinds: what runs beside the candidate.
    length: tokens of a request.
    prompts: how many take turns; None for a prompt of its own per request.
    served: all arms as an endpoint shows them.
    """

    faults: tuple[str, ...]
    most: int = 1024
    kinds: tuple[ArmKind, ...] = ()
    length: int = 64
    prompts: int | None = None
    served: bool = False

    def seen(self, evidence: Evidence) -> Evidence:
        """What the check is given of an arm and its companions."""
        if not self.served:
            return evidence
        baseline, control = (arm and served_arm(arm) for arm in (evidence.baseline, evidence.control))
        return Evidence(served_arm(evidence.candidate), baseline, control)


PLANS = {
    "accounting": Plan(
        ("tokens_after_end_token", "length_overrun", "logprobs_zero", "masks_missing_on_drafted_rows"), 512, length=16
    ),
    "replay": Plan(
        ("argmax_draft_soft_q", "sqrt_acceptance", "lenient_10_percent", "lenient_1_percent"), 4096, length=16
    ),
    "rng_streams": Plan(
        ("number_reused_across_positions", "residual_reuses_draft_number", "requests_share_numbers", "seed_ignored"),
        512,
        length=16,
    ),
    "greedy_equality": Plan(
        ("greedy_accepts_top2", "drafted_rows_in_bfloat16", "ties_broken_differently"), 2048, PAIRED
    ),
    "coupled_equality": Plan(
        ("target_rows_shifted", "noise_keyed_by_draw", "tree_mask_leaks", "kv_residue"), 1024, PAIRED
    ),
    "same_seed": Plan(
        ("target_rows_shifted", "noise_keyed_by_draw", "tree_mask_leaks", "kv_residue"), 1024, PAIRED, served=True
    ),
    "long_context": Plan(("kv_not_rolled_back", "sqrt_acceptance"), 1024, PAIRED, 256),
    "bitwise": Plan(
        ("target_rows_shifted", "kv_not_rolled_back", "kv_residue", "drafted_rows_in_bfloat16"),
        512,
        (ArmKind.BASELINE, ArmKind.REREAD),
    ),
    "honoured": Plan(
        ("temperature_ignored_on_drafted_rows", "bonus_not_warped", "penalties_double_counted"), 1024, length=16
    ),
    "seed": Plan(("seed_ignored", "numbers_of_another_request"), 256, (*PAIRED, *RERUNS), 16),
    "gamma_invariance": Plan(
        ("noise_keyed_by_draw", "sqrt_acceptance", "resample_from_p"), 2048, (*PAIRED, ArmKind.OTHER_GAMMA)
    ),
    "token_law": Plan(
        ("target_rows_shifted", "argmax_draft_soft_q", "first_draft_unverified", "lenient_10_percent"),
        4096,
        (ArmKind.ANCHOR,),
        32,
    ),
    "law": Plan(("stale_q", "first_draft_unverified", "resample_from_p", "lenient_10_percent"), 4096),
    "q_contract": Plan(("argmax_draft_soft_q", "draft_top_10_raw_q", "draft_from_bf16_logits"), 2048, length=16),
    "anchor": Plan(
        ("target_rows_shifted", "kv_not_rolled_back", "kv_residue", "drafted_rows_in_bfloat16"),
        512,
        (*PAIRED, ArmKind.ANCHOR),
    ),
    "prefix_measurable": Plan(
        ("trimmed_by_own_probability", "forbidden_drafts_dropped", "trimmed_by_next_confidence"), 4096
    ),
    "acceptance_theory": Plan(
        ("argmax_draft_soft_q", "sqrt_acceptance", "temperature_ignored_on_drafted_rows", "lenient_10_percent"), 4096
    ),
    "transcript": Plan(
        ("sqrt_acceptance", "draft_from_bf16_logits", "target_rows_shifted", "kv_residue"), 512, (ArmKind.ANCHOR,)
    ),
    "logprob_closeness": Plan(
        ("target_rows_shifted", "logprob_rows_shifted", "logprobs_zero"), 256, (*PAIRED, ArmKind.ANCHOR), 16
    ),
    "acceptance_drift": Plan(
        ("argmax_draft_soft_q", "sqrt_acceptance", "temperature_ignored_on_drafted_rows"), 2048, length=32
    ),
    "draft_anchor": Plan(
        ("draft_one_behind", "draft_vocabulary_shifted", "copies_from_previous_request"), 512, (ArmKind.REDRAFT,), 16
    ),
    "text": Plan(("text_out_of_order",), 256, length=16),
    "tool_call_equality": Plan(
        ("parser_fed_per_chunk", "tool_arguments_cut_at_accept", "tool_call_from_draft"), 512, PAIRED, 32
    ),
    "constraint_replay": Plan(
        ("matcher_not_rolled_back", "mask_missing_on_bonus_token", "mask_of_another_row", "mask_on_draft_only"),
        512,
        length=16,
    ),
    "schema_conformance": Plan(
        ("end_allowed_inside_answer", "mask_missing_on_bonus_token", "mask_on_draft_only"), 1024, length=48
    ),
    "two_sample": Plan(("accepts_everything", "argmax_draft_soft_q"), 2048, (ArmKind.BASELINE,), 32, prompts=8),
}


def drawn():
    """Checks with a picture.

    Those of the clock have none, nor those of other engines' statements, nor those that compare requests, because the
    catalogue's faults break all requests of an arm alike.
    """
    left = TIMED | BY_FELLOWS
    return [name for name in checks.names() if name not in left and not checks.load(name).external]


TIMED = frozenset({"performance"})
"""Checks of wall time and of margins that have no default: their power is that of the machine and of the margin."""


def plan_of(name: str) -> Plan:
    """The check's plan, or what its claim and its companions suggest."""
    if name in PLANS:
        return PLANS[name]
    check = checks.load(name)
    every = [faults.load(each) for each in faults.REGISTRY]
    breaking = [each.name for each in every if each.breaks == check.claim and each.scenario.models == "scripted"]
    suited = breaking or [each.name for each in every if each.breaks == "law" and each.scenario.models == "scripted"]
    return Plan(tuple(suited[:3]), 2048, (*PAIRED, *check.companions), prompts=4)


def seeds_at(tokens: int, seeds: int) -> int:
    """Fewer at the large sizes."""
    return seeds if tokens <= MANY_SEEDS_UP_TO else max(1, seeds // (2 if tokens <= 2 * MANY_SEEDS_UP_TO else 4))


def line(name: str, plan: Plan, fault: str | None, seeds: int) -> dict[str, Any]:
    """One fault's points, or those of the arm in which the first fault would be."""
    scenario, check = faults.load(fault or plan.faults[0]).scenario, checks.load(name)
    scenario = replace(scenario, sampling=replace(scenario.sampling, max_new_tokens=plan.length))
    arms = [Growing(scenario, fault, seed, plan.kinds, plan.prompts) for seed in range(seeds)]
    points: list[dict[str, Any]] = []
    ever: set[int] = set()
    for size in (each for each in SIZES if plan.length <= each <= plan.most):
        tried = seeds_at(size, seeds)
        grown = [plan.seen(arm.grown(size)) for arm in arms[:tried]]
        hits = {at for at, each in enumerate(grown) if evaluate(check, each, {}).verdict is Verdict.FAULT}
        ever |= hits
        count = sum(len(each.tokens) for one in grown for each in one.candidate.requests)
        points.append({"tokens": round(count / tried), "seeds": tried, "faults": len(hits)})
        if fault and len(points) > 1 and all(each["faults"] == each["seeds"] for each in points[-2:]):
            break
    return {"fault": fault, "points": points, "seeds_ever": len(ever)}


def measure(name: str, seeds: int) -> dict[str, Any]:
    """All lines of a check, the clean arm last."""
    plan = plan_of(name)
    return {
        "check": name,
        "arms": "engine.faults over scripted models",
        "command": f"python -m tests.bench.power --only {name}",
        "seeds": seeds,
        "most_tokens": plan.most,
        "lines": [line(name, plan, fault, seeds) for fault in (*plan.faults, None)],
    }


def picture(found: dict[str, Any]) -> str:
    """The SVG of what `measure` found."""
    curves = [
        Curve(
            each["fault"] or "no fault",
            tuple((point["tokens"], point["faults"] / point["seeds"]) for point in each["points"]),
            clean=each["fault"] is None,
        )
        for each in found["lines"]
    ]
    fewer = f", fewer above {MANY_SEEDS_UP_TO} tokens" if found["most_tokens"] > MANY_SEEDS_UP_TO else ""
    below = f"Faults of engine/faults over scripted models, {found['seeds']} seeds{fewer}, default parameters."
    return chart(f"{found['check']}: share of seeds called a fault", curves, below)


def needed(points: Sequence[dict[str, Any]]) -> int | None:
    """Smallest size from which every measured point has the power; None if the last lacks it."""
    missed = [at for at, each in enumerate(points) if each["faults"] < POWER * each["seeds"]]
    first = missed[-1] + 1 if missed else 0
    return points[first]["tokens"] if first < len(points) else None


def sentence(found: dict[str, Any]) -> str:
    """The result of the picture, in one sentence."""
    tokens_by_fault = []
    for each in found["lines"][:-1]:
        tokens, last = needed(each["points"]), each["points"][-1]
        if tokens is None:
            tokens_by_fault.append(f"`{each['fault']}` {last['faults']} of {last['seeds']} seeds at {last['tokens']}")
        else:
            tokens_by_fault.append(f"`{each['fault']}` {'at most ' * (tokens == each['points'][0]['tokens'])}{tokens}")
    clean = found["lines"][-1]["seeds_ever"]
    text = (
        f"Smallest number of tokens at which at least {POWER} of the seeds report a fault: "
        f"{', '.join(tokens_by_fault)}; without a fault, {clean} of {found['seeds']} seeds report one at any size "
        f"([numbers](power/{found['check']}.json), `{found['command']}`)."
    )
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


def shown(text: str, found: dict[str, Any]) -> str:
    """The page with the picture at its marker, or before the parameters."""
    name = found["check"]
    block = f"{MARKER}\n\n![Power of {name} by tokens](power/{name}.svg)\n\n{sentence(found)}\n"
    old = rf"{re.escape(MARKER)}\n(\n!\[Power of [^\n]*\n\n(?:[^\n]+\n)+)?"
    if MARKER in text:
        return re.sub(old, lambda _: block, text, count=1)
    return text.replace("## Parameters\n", f"{block}\n## Parameters\n", 1)


def write(found: dict[str, Any], pages: Path) -> None:
    """The numbers, the picture and the page."""
    name, folder = found["check"], pages / "power"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.svg").write_text(picture(found), encoding="utf-8")
    page = pages / f"{name}.md"
    page.write_text(shown(page.read_text(encoding="utf-8"), found), encoding="utf-8")


@click.command()
@click.option("--only", multiple=True, type=click.Choice(checks.names()), help="These checks.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--pages", type=click.Path(file_okay=False, path_type=Path), default=PAGES, help="Folder of the pages.")
def main(only: Sequence[str], seeds: int, pages: Path) -> None:
    """Measure and draw."""
    for name in only or drawn():
        found = measure(name, seeds)
        write(found, pages)
        click.echo(f"{name}: {' '.join(sentence(found).split())}")


if __name__ == "__main__":
    main()
