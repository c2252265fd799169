"""`python -m tests.bench.planned_time MODEL...`: the time that a trial predicts for a first suite, and that it takes.

For each model `audit init` writes the suite, with the bundled chats, and `audit plan --trial` and `audit run` follow in
processes of their own. Nothing is asserted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.audit.agreement import misses, run_seconds

CHATS = Path(__file__).parents[1] / "real" / "chats.jsonl"


def audit(folder: Path, *arguments: str) -> str:
    """Standard output; a run that ends undecided ends here too."""
    command = [sys.executable, "-m", "audit", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise click.ClickException(done.stderr or done.stdout)
    return done.stdout


def measured(model: str, prompts: Path) -> str:
    """A model's row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        audit(folder, "init", str(Path(model).resolve()), "--prompts", str(prompts.resolve()), "--out", "first.yaml")
        plan = json.loads(audit(folder, "plan", "first.yaml", "--trial", "--json", "--store", "first.db"))
        audit(folder, "run", "first.yaml", "--store", "first.db", "--results", "first.json")
        results = json.loads((folder / "first.json").read_text(encoding="utf-8"))
    took, differing = run_seconds(results), len(misses(plan, results))
    seconds = plan["seconds"]
    row = (Path(model).name, f"{seconds:.0f} s", f"{took:.0f} s", f"{took / seconds:.2f}", str(differing))
    return f"| {' | '.join(row)} |"


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), default=CHATS, show_default=True)
def main(models: tuple[str, ...], prompts: Path) -> None:
    """Print a table row per model."""
    click.echo("| model | planned | took | ratio | checks that ended otherwise |\n|---|---|---|---|---|")
    for model in models:
        click.echo(measured(model, prompts))


if __name__ == "__main__":
    main()
