"""The ends of four runs, as a terminal of 80 and of 120 columns shows them.

`python -m tests.audit.terminal.run_endings` writes them anew, after their words were changed on purpose.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

from audit.api.running import Quiet
from audit.cli import main
from audit.report.requests.pieces import pieces_of
from audit.report.tables.results import results
from audit.store import Store
from audit.store.base.connection import default_url
from audit.terminal import run_session
from tests.support.observers import StopsAfter

HOME = Path(__file__).parent / "endings"
WIDTHS = (80, 120)
SUITE = """\
version: 1
name: few
backend: scripted
seed: 3
batch_size: 3
samples: 15
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads: [{{name: chat, prompts: prompts.jsonl, limit: {prompts}}}]
sampling: {{max_new_tokens: 40, stop_token_ids: [25]}}
coverage: {{directed: {directed}}}
arms:
  - {{name: greedy, proposer: {{kind: draft_model, model: draft, gamma: 3}}, verifier: greedy{fault}}}
  - name: sampled
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 0.8}}
  - name: coupled
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: gumbel
    sampling: {{temperature: 0.8}}
"""
WORDS = "the sea|a cat and a dog|once|no|they say that it never rains|ok then|abc|a long day|we|all of them"
ENDINGS = {
    "pass": {},
    "fail": {"fault": ", fault: drafted_end_ignored"},
    "undecided": {"directed": "off", "prompts": 2},
    "interrupted": {},
}


def suite_file(folder: Path, *, prompts: int = 10, directed: str = "on", fault: str = "") -> Path:
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(prompts=prompts, directed=directed, fault=fault))
    rows = [{"prompt": f"{words}{after}"} for after in ("", " so", " if", " but") for words in WORDS.split("|")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextlib.contextmanager
def _watched(stops: bool) -> Iterator[Quiet]:
    yield StopsAfter(30) if stops else Quiet()


def endings(name: str, folder: Path) -> dict[int, str]:
    """The words of one run by width: of the command, then of the run as it is stored. Ids and folders have names."""
    with contextlib.chdir(folder), mock.patch.dict(os.environ, {"XDG_DATA_HOME": "data", "COLUMNS": str(WIDTHS[0])}):
        os.environ.pop("AUDIT_STORE", None)
        with mock.patch.object(run_session, "progress", return_value=_watched(name == "interrupted")):
            done = CliRunner().invoke(main, ["run", suite_file(Path(), **ENDINGS[name]).name])
        texts = {}
        for width in WIDTHS:
            text = (done.stdout if width == WIDTHS[0] else _printed(width)) or done.stderr
            # a command begins a line of its own if it does not fit, which the folder's name decides
            text = text.replace(":\naudit ", ": audit ").replace(str(folder.resolve()), "FOLDER")
            texts[width] = f"{re.sub('[0-9A-HJKMNP-TV-Z]{26}', 'RUN', text)}exit code {done.exit_code}\n"
    return texts


def _printed(width: int) -> str:
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(width)}),
        contextlib.redirect_stdout(io.StringIO()) as text,
        Store.open(default_url(), create=False) as store,
    ):
        result = results(store, store.resolve("latest"))
        if result.run.exit_code is not None:
            run_session.print_summary(store, result, pieces_of(result.run))
    return text.getvalue()


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    for kind in ENDINGS:
        with tempfile.TemporaryDirectory() as made:
            for columns, words in endings(kind, Path(made)).items():
                (HOME / f"{kind}-{columns}.txt").write_text(words, encoding="utf-8")
