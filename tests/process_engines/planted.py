"""An interpreter that runs some lines before anything else."""

from __future__ import annotations

from pathlib import Path


def interpreter_with(folder: Path, python: str, lines: str) -> str:
    """The path of a script that starts `python`, which runs the lines of `sitecustomize` first; `folder` is new."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(lines, "utf-8")
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{python}" "$@"\n', "utf-8")
    script.chmod(0o755)
    return str(script)
