"""Pages whose commands run: `sh` blocks prepare, `console` blocks show commands with their output.

`make docs-integrations` runs the blocks of each part in a folder of its own and rewrites the outputs. A part is a page,
or a section of a page in docs/integrations. A test runs them too and compares. Ids, digests,
keys and moments are not compared, numbers may differ a little, as another processor rounds otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from docs.tools.readme_transcripts import differences

ROOT: Final = Path(__file__).resolve().parents[2]
STARTING_POINT: Final = ROOT / "tests" / "attach" / "starting_point"
FENCE: Final = re.compile(r"^```(?P<kind>sh|console)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT: Final = "$ "
COLUMNS: Final = 118
SECTION: Final = re.compile(r"^(?=## )", re.MULTILINE)
RANDOM: Final = {
    re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"): "ULID",
    re.compile(r"\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{44}"): "+KEY",
    re.compile(r"\b[0-9a-f]{12,64}\b"): "DIGEST",
    re.compile(r"\d{4}-\d\d-\d\dT[\d:.-]+(?:Z|\+00:00)?"): "MOMENT",
    re.compile(r"[0-9.]+ ?(?:seconds|ms|s)\b"): "DURATION",
}
"""What differs from run to run."""


def starting_point(folder: Path) -> None:
    """Prepare a folder as the pages assume it: models, suite, policy, questions, and a finished run in audit.db."""
    shutil.copytree(STARTING_POINT, folder, dirs_exist_ok=True)
    for name in ("target", "draft"):
        shutil.copytree(ROOT / "engine" / "bundled" / name, folder / "models" / name)
    run(folder, "audit run suite.yaml --results results.json")


def run(folder: Path, command: str) -> str:
    """What a command of a shell prints to stdout.

    Raises:
        RuntimeError: it does not exit with 0.
    """
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "COLUMNS": str(COLUMNS), "AUDIT_STORE": "audit.db"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def parts(page: Path) -> list[str]:
    """The parts of a page whose blocks run in one folder: together they are the page."""
    text = page.read_text(encoding="utf-8")
    return SECTION.split(text) if page.parent.name == "integrations" else [text]


def rewritten(page: str, folder: Path) -> str:
    """The page with every block run in the folder, in order, and the outputs as they are now."""

    def block(match: re.Match[str]) -> str:
        if match["kind"] == "sh":
            run(folder, match["body"])
            return match[0]
        return f"```console\n{''.join(_shown(folder, match['body']))}```"

    return FENCE.sub(block, page)


def _shown(folder: Path, body: str) -> Iterator[str]:
    for line in body.splitlines():
        if line.startswith(PROMPT):
            output = run(folder, line.removeprefix(PROMPT)).rstrip("\n")
            yield f"{line}\n" + "".join(f"{text.rstrip()}\n" for text in output.splitlines())


def changes(before: str, after: str) -> list[str]:
    """What differs between two versions of a page, apart from what is random."""
    for pattern, word in RANDOM.items():
        before, after = pattern.sub(word, before), pattern.sub(word, after)
    return differences(before, after)


@click.command("transcripts")
@click.argument("pages", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def write(pages: tuple[Path, ...]) -> None:
    """Run the blocks of PAGES and rewrite the outputs."""
    with tempfile.TemporaryDirectory() as name:
        start = Path(name) / "start"
        starting_point(start)
        for page in pages:
            texts = []
            for number, part in enumerate(parts(page)):
                folder = Path(shutil.copytree(start, Path(name) / f"{page.stem}-{number}"))
                texts.append(rewritten(part, folder))
            page.write_text("".join(texts), encoding="utf-8")


if __name__ == "__main__":
    write()
