"""`audit convert`: a model for another engine, by that engine's own converter, tied to its source by digests."""

import sys
from pathlib import Path

import click

from audit.errors import UserError
from audit.terminal.options import PATH
from audit.terminal.tables import cell
from audit.text.printer import echo
from engine.core.errors import EngineError
from engine.core.registry import CONVERTERS, resolve


@click.command("convert")
@click.argument("model")
@click.option("--to", "kind", type=click.Choice(list(CONVERTERS)), required=True, help="Format.")
@click.option("--out", type=PATH, required=True, metavar="FOLDER", help="New folder.")
@click.option("--python", metavar="PATH", help="Interpreter with the engine's converter. Default: the current one.")
def command(model: str, kind: str, out: Path, python: str | None) -> None:
    """Convert MODEL, a folder or another source of models, for another engine.

    The engine's Python writes the new folder; conversion.json in it holds SHA-256 digests of the source's and the
    result's files, the versions, and the rounding. A suite names the folder under `engine: {FORMAT: {...}}`.
    """
    # imported late: the help imports no model code
    from engine.backends.process.convert import ModelConverter, convert
    from engine.backends.process.engine_process import interpreter
    from engine.models.loading import open_source

    if out.exists():
        raise UserError(f"--out {out}: exists; name a new folder")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: {out.parent} is no folder; make it first")
    try:
        converter: ModelConverter = resolve(CONVERTERS, kind, "format")
        path = interpreter(python or sys.executable, converter.program.name)
        made = convert(converter, open_source(model), path, out)
    except EngineError as error:
        raise UserError(str(error)) from error
    echo(f"format     {kind}, precision {made.manifest['precision']}")
    echo(f"rounding   {made.manifest['rounding']}")
    echo(f"source     {cell(model)}  sha256:{made.source_sha256}")
    echo(f"converted  {cell(out)}  sha256:{made.sha256}")
