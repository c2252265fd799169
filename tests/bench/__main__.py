"""`python -m tests.bench NAME`: one benchmark, as a table and as JSON. Nothing is asserted about a time."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path

import click
import torch

from audit.evidence.environment import hardware
from audit.store.base.canonical import jsonable
from engine.models.numerics import DRAFTING, REGISTRY
from tests.bench.admission import main as admission
from tests.bench.battery import main as battery
from tests.bench.figures import documents, rendered
from tests.bench.levels import main as levels
from tests.bench.report import main as report
from tests.bench.serve import main as serve
from tests.bench.setting import CLOCKS, TEMPLATED, Setting, bundled_pair
from tests.bench.store import main as store
from tests.bench.view import main as view
from tests.bench.vllm import main as vllm
from tests.bench.vocabulary import main as vocabulary
from tests.bench.workers import main as workers

BENCHES = ("engines", "sizes", "recording", "numerics", "batch", "context", "gamma")
GROUPS = ("templated", *TEMPLATED, "copy", "code")
QUICK = {"rounds": 1, "prompts": 1, "length": 6}


@click.command()
@click.argument("name", type=click.Choice(BENCHES))
@click.option("--quick", is_flag=True, help="One tiny round: does it run at all?")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Default: build/bench/NAME.json.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--prompts", type=click.IntRange(min=1), default=4, show_default=True, help="Per domain.")
@click.option("--tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Most new tokens.")
@click.option("--gamma", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--clock", type=click.Choice(tuple(CLOCKS)), default="wall", show_default=True, help="cpu on a busy machine."
)
@click.option("--target", help="bundled:NAME or a folder.")
@click.option("--draft", help="bundled:NAME or a folder.")
@click.option("--dtype", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True)
@click.option("--draft-dtype", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True)
@click.option(
    "--mode", type=click.Choice(tuple(REGISTRY)), default="ordered", show_default=True, help="Target's numerics."
)
@click.option(
    "--draft-mode",
    type=click.Choice((DRAFTING, *REGISTRY)),
    default=DRAFTING,
    show_default=True,
    help="Draft's numerics.",
)
@click.option("--device", default="cpu", show_default=True, help="As torch calls it, such as cuda.")
@click.option("--domains", help=f"Groups, by commas, of {', '.join(GROUPS)}.")
def main(name, quick, out, rounds, prompts, tokens, gamma, clock, target, draft, domains, **kinds) -> None:
    """Run the benchmark NAME on one thread."""
    torch.set_num_threads(1)
    groups = tuple(domains.split(",")) if domains else ()
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise click.UsageError(f"no domain {unknown[0]!r}; there are: {', '.join(GROUPS)}")
    pair = bundled_pair()
    models = (target or pair[0], draft or pair[1])
    setting = Setting(*models, rounds, prompts, tokens, gamma, clock, groups, quick, **kinds)
    setting = dataclasses.replace(setting, **QUICK) if quick else setting
    click.echo(
        f"{name}: {setting.target} ({setting.dtype}, {setting.mode}) with {setting.draft} ({setting.draft_dtype}), "
        f"{setting.rounds} rounds, {clock} time, one torch thread, {setting.device}"
    )
    began, tables = time.perf_counter(), []
    for table in importlib.import_module(f"tests.bench.{name}").run(setting):
        tables.append(table)
        click.echo(f"\n{rendered(table)}")
    _write(out or Path("build") / "bench" / f"{name}.json", name, setting, tables)
    click.echo(f"\n{time.perf_counter() - began:.0f} s")


def _write(path: Path, name: str, setting: Setting, tables) -> None:
    document = {"bench": name, "setting": setting, "hardware": hardware(), "tables": documents(tables)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(jsonable(document), indent=2) + "\n")


if __name__ == "__main__":
    # these have options of their own
    own = {
        "admission": admission,
        "battery": battery,
        "levels": levels,
        "report": report,
        "serve": serve,
        "store": store,
        "view": view,
        "vllm": vllm,
        "vocabulary": vocabulary,
        "workers": workers,
    }
    chosen = own.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if chosen is None:
        main()
    else:
        chosen(sys.argv[2:], prog_name=f"python -m tests.bench {sys.argv[1]}")
