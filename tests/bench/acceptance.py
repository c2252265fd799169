"""`python -m tests.bench.acceptance`: every registered proposer on the bundled target, as docs/acceptance.md.

Counts only, so the machine's speed does not matter. A proposer drafts with the bundled head that it takes, first the
one of its own name, or with the bundled draft; a new line in the registry appears by itself. `--only NAME` measures
one, in seconds, and leaves the others' rows as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import click
import torch

from engine import proposers
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import NativeBackend, open_models
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.heads.formats import layout_of
from engine.record.metrics import Acceptance, acceptance
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.train.prompts import prompt_rows
from tests.bench.setting import REFERENCE

DOMAINS = ("tools", "copy", "code")
TEMPERATURES = (0.0, 1.0)
CHAIN_GAMMA = 5
TREE_GAMMA = 16
SHOWN = 4
"""Positions in the table."""
Options = Mapping[str, object]
DEFAULT: tuple[Options, ...] = ({},)
OPTIONS: Mapping[str, tuple[Options, ...]] = {
    "eagle3": ({}, {"dynamic": True}),
    "layer_skip": ({"skip_ffn": "2"},),
    "online": ({"learn": True},),
}
"""What a proposer cannot do without, or would not be itself without; several where it drafts in several shapes."""
COMPARED = ("[eagle3](proposers/eagle3.md) `dynamic`", "[eagle](proposers/eagle.md)", "[medusa](proposers/medusa.md)")
"""Names as in the rows, in the order that the heads' papers claim."""
PAGE = Path(__file__).parents[2] / "docs" / "acceptance.md"


@dataclass(frozen=True)
class Measured:
    kind: str
    variant: str
    gamma: int
    temperature: float
    rule: Protocol
    domain: str
    counts: Acceptance


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, help="The page to write.")
@click.option("--prompts", type=click.IntRange(min=1), default=8, show_default=True, help="Per domain.")
@click.option("--tokens", type=click.IntRange(min=2), default=64, show_default=True, help="Most new tokens.")
@click.option("--only", multiple=True, help="These; the page keeps its other rows.")
def main(out: Path, prompts: int, tokens: int, only: Sequence[str]) -> None:
    """Measure and write the page."""
    torch.set_num_threads(1)
    introduction = INTRODUCTION.format(chain=CHAIN_GAMMA, tree=TREE_GAMMA, prompts=prompts, tokens=tokens, shown=SHOWN)
    kept = kept_rows(out, introduction, only) if only and out.exists() else {}
    kinds = [kind for kind in proposers.REGISTRY if not only or kind in only]
    measured = [each for kind in kinds for each in measure(kind, prompts, tokens)]
    unmeasured = [kind for kind in kinds if kind not in {each.kind for each in measured}]
    out.write_text(page(introduction, rows_of(measured, unmeasured), kept), encoding="utf-8")
    click.echo(out.read_text(encoding="utf-8"))


def measure(kind: str, prompts: int, tokens: int) -> Iterator[Measured]:
    """Nothing for a proposer that no bundled model suits."""
    backend, several = workshop_for(kind), OPTIONS.get(kind, DEFAULT)
    for options, temperature in product(several, TEMPERATURES):
        variant = " ".join(f"`{name}`" for name in options) if len(several) > 1 else ""
        plan = plan_for(backend, kind, options, temperature)
        if plan is None:
            return
        engine = backend.arm(plan)
        sampling = SamplingParams(temperature=temperature, max_new_tokens=tokens, seed=1)
        for domain in DOMAINS:
            rows = prompt_rows(prompts)[domain]
            requests = [
                Request(each["id"], engine.encode(_prompt(each)), sampling, stream_of(each["id"])) for each in rows
            ]
            counts = acceptance(decode(each.trace) for each in engine.generate(requests))
            yield Measured(kind, variant, plan.gamma, temperature, plan.protocol, domain, counts)


def workshop_for(kind: str) -> NativeBackend:
    """The target, the draft and the bundled heads, the one of the proposer's name first."""
    heads = sorted(heads_of_the_family(), key=lambda name: (name != kind, name))
    models = {"target": ModelSource("bundled:target"), "draft": ModelSource("bundled:draft")}
    return open_models(models | {name: ModelSource(f"bundled:{name}") for name in heads})


def heads_of_the_family() -> list[str]:
    folders = (path.parent for path in REFERENCE.glob("*/config.json"))
    return [each.name for each in folders if layout_of(json.loads((each / "config.json").read_text())) is not None]


def plan_for(backend: NativeBackend, kind: str, options: Options, temperature: float) -> EngineSpec | None:
    """The plan with the first model that the proposer takes, none if it needs none, under the rule for its shape."""
    for model in (None, *(each.name for each in backend.models() if each.name not in ("target", "draft")), "draft"):
        plan = EngineSpec(Protocol.GREEDY, kind, CHAIN_GAMMA, model, options=options, level=RecordLevel.TOKENS, rows=4)
        try:
            shape = backend.arm(plan).effective_config().proposer_shape
        except InvalidRequest:
            continue
        if shape == "tree":
            plan = replace(plan, gamma=TREE_GAMMA)
        sampled = Protocol.TREE if shape == "tree" else Protocol.CHAIN
        return replace(plan, protocol=sampled) if temperature else plan
    return None


def _prompt(row) -> Prompt:
    return Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))


Rows = dict[float, list[str]]
"""Rows of the page by temperature."""


def rows_of(measured: Sequence[Measured], unmeasured: Sequence[str]) -> Rows:
    none = [f"| [{kind}](proposers/{kind}.md) | {NO_MODEL} | | | | | |" for kind in unmeasured]
    return {heat: [*(row(each) for each in measured if each.temperature == heat), *none] for heat in TEMPERATURES}


def kept_rows(out: Path, introduction: str, only: Sequence[str]) -> Rows:
    """The page's rows of other proposers that are still registered."""
    text = out.read_text(encoding="utf-8")
    if settings_of(text) != settings_of(introduction):
        raise click.UsageError(f"{out} was measured with other settings; give the same ones, or another --out")
    parts = text.split("## Temperature ")[1:]
    kept = set(proposers.REGISTRY) - set(only)
    return {float(each.split()[0]): [line for line in each.splitlines() if kind_of(line) in kept] for each in parts}


def settings_of(text: str) -> list[str]:
    return re.findall(r"Chains of .*? new tokens", " ".join(text.split()))


def kind_of(line: str) -> str:
    return line[3 : line.index("]")] if line.startswith("| [") else ""


def page(introduction: str, rows: Rows, kept: Rows) -> str:
    lines, order = [introduction], list(proposers.REGISTRY)
    for heat in TEMPERATURES:
        both = sorted(kept.get(heat, []) + rows[heat], key=lambda line: (NO_MODEL in line, order.index(kind_of(line))))
        lines += [f"## Temperature {heat:g}", "", HEAD, RULE, *both, "", *comparison(both)]
    return "\n".join(lines).rstrip() + "\n"


def comparison(rows: Sequence[str]) -> list[str]:
    """How the compared proposers come out, in words; nothing where one of them was not measured."""
    cells = [line.strip("| ").split(" | ") for line in rows if NO_MODEL not in line]
    lengths = {(name, domain): length for name, _, domain, length, *_ in cells}
    found = {domain: [lengths.get((name, domain), "-") for name in COMPARED] for domain in DOMAINS}
    if any("-" in each for each in found.values()):
        return []
    figures = "; ".join(f"{', '.join(each)} on {domain}" for domain, each in found.items())
    other = [domain for domain, each in found.items() if each != sorted(each, key=float, reverse=True)]
    verdict = f"another order on {' and '.join(other)}" if other else "each time in this order"
    first, *others = COMPARED
    return [f"Acceptance lengths of {first}, {' and '.join(others)}: {figures}; {verdict}.", ""]


NO_MODEL = "no bundled model suits it"
INTRODUCTION = """# Proposers, measured

Generated by `python -m tests.bench.acceptance`; do not edit. Proposers on the bundled target: with the
bundled head that it takes, or the bundled draft where it drafts with a model, and its default options; `layer_skip`
leaves out the feed-forward part of layer 2, `online` learns, anew in each domain, and `eagle3` drafts a chain and, with
`dynamic`, a tree. Chains of at most {chain} tokens, trees of at most {tree} nodes; {prompts} prompts per domain, at
most {tokens} new tokens. Temperature 0 under `greedy`; temperature 1 under `chain`, trees under `tree`.

*Acceptance length* counts the recovered or bonus token, over steps that drafted; *by position* is the share of those
steps that kept at least 1, 2, ... {shown} tokens; *tokens per forward* counts steps without a draft too. The target is
tiny: the figures compare proposers on it, and say nothing about other models.
"""
HEAD = "| proposer | rule | domain | acceptance length | by position | tokens per forward | accepted / drafted |"
RULE = "|---|---|---|---|---|---|---|"


def row(each: Measured) -> str:
    counts = each.counts
    kept = " ".join(f"{kept / counts.drafting_steps:.2f}" for kept in counts.kept[:SHOWN]) or "-"
    length = f"{counts.acceptance_length:.2f}" if counts.drafting_steps else "-"
    name = f"[{each.kind}](proposers/{each.kind}.md) {each.variant}".rstrip()
    return (
        f"| {name} | {each.rule} | {each.domain} | {length} | {kept} "
        f"| {counts.tokens_per_forward:.2f} | {counts.accepted} / {counts.drafted} |"
    )


if __name__ == "__main__":
    main()
