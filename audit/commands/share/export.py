"""`audit export`: one run as a file."""

from pathlib import Path

import click

from audit.errors import UserError
from audit.store import Store
from audit.terminal.options import PATH, complete_runs, store_option
from audit.terminal.tables import cell
from audit.text.printer import echo


@click.command("export")
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--out", type=PATH, required=True, metavar="FILE", help="File or new folder.")
@click.option("--format", "kind", type=click.Choice(["bundle", "parquet", "difr"]), default="bundle", show_default=True)
@click.option("--arm", metavar="ARM", help="The arm of a file for DiFR.")
@store_option
def command(run: str, out: Path, kind: str, arm: str | None, store: str) -> None:
    """Write the finished RUN to a file that others can verify and import.

    The file is a zip of JSON lines, one part per table: run, arms, requests, steps, traces, verdicts, coverage,
    decisions, artifacts, environment. The same run gives the same bytes. `audit verify FILE` recomputes its hashes
    without a store; `audit import FILE` adds the run to another one. The texts of prompts and outputs are in it.

    With --format parquet, a new folder with one Parquet file per table and view, for DuckDB and pandas. With --format
    difr, prompts and answers of one arm as token ids, in the JSON that DiFR scores against a reference.
    """
    from audit.store.verified_bundle import file_digest

    if (kind == "difr") != (arm is not None):
        raise UserError("--arm and --format difr belong together: name the arm whose answers DiFR scores")
    if arm is not None:
        _difr(run, arm, out, store)
        return
    if kind == "parquet":
        _parquet(run, out, store)
        return
    if out.suffix != ".zip":
        example = out.with_suffix(".zip") if out.name else "run.zip"
        raise UserError(f"--out {out}: a bundle is a zip file; name it {example}")
    with Store.open(store, create=False, read_only=True) as opened:
        name = opened.resolve(run)
        opened.export_bundle(name, out)
        root = opened.load_run(name).record_root
    echo(f"run          {name}")
    echo(f"record root  {root}")
    echo(f"bundle       {cell(out)}  sha256:{file_digest(out)}")


def _parquet(run: str, folder: Path, store: str) -> None:
    from audit.store.bundle.parquet_folder import export_folder

    with Store.open(store, create=False, read_only=True) as opened:
        name = opened.resolve(run)
    files = export_folder(store, name, folder)
    echo(f"run          {name}")
    echo(f"folder       {cell(folder)}  {len(files)} Parquet files")


def _difr(run: str, arm: str, out: Path, store: str) -> None:
    from audit.report.difr_file import write_difr

    with Store.open(store, create=False, read_only=True) as opened:
        name = opened.resolve(run)
        answers = write_difr(opened, name, arm, out)
        echo(f"run          {name}")
        echo(f"file         {cell(out)}  {answers} answers of arm {cell(arm)}")
