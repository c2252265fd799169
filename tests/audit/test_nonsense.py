"""Nonsense in one request, quantity by quantity: the run ends with verdicts, the arm is no pass, other arms keep theirs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.verdicts import Verdict
from audit.store import Store
from engine.backends.native.backend import NativeEngine
from engine.core.types import FinishReason, RecordLevel
from engine.record.columns import TABLE
from engine.record.trace import decode, encode
from tests.audit.invoke import invoke

SUITE = """
version: 1
name: nonsense
backend: scripted
seed: 5
batch_size: 2
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 12, temperature: 1}
coverage: {least: 0}
arms:
"""
ARM = "  - {{name: {}, proposer: {{kind: draft_model, model: draft, gamma: 3}}, verifier: chain, record: {}}}\n"
VICTIM = "words/w1#0"
RIGHT = "right"


def every(column, value):
    return np.full_like(column, value)


def largest(column):
    limits = np.finfo(column.dtype) if column.dtype.kind == "f" else np.iinfo(column.dtype)
    return every(column, limits.max)


def smallest(column):
    limits = np.finfo(column.dtype) if column.dtype.kind == "f" else np.iinfo(column.dtype)
    return every(column, limits.min)


KINDS = {
    "zero": lambda column: every(column, 0),
    "largest": largest,
    "no number": lambda column: every(column, np.nan) if column.dtype.kind == "f" else smallest(column),
    "next": lambda column: column + column.dtype.type(1),
    "shorter": lambda column: column[:-1],
}
"""Changes of a column."""


def run(folder, monkeypatch, changes, level="full"):
    """The checks of a run in which one request of each arm is changed, by arm and name, and its output."""
    folder.mkdir(exist_ok=True)
    rows = [{"id": f"w{i}", "prompt": "abc" * (i + 1)} for i in range(3)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "suite.yaml").write_text(SUITE + "".join(ARM.format(name, level) for name in [*changes, RIGHT]))
    generate = NativeEngine.generate

    def changed(engine, requests):
        for generation in generate(engine, requests):
            arm, _, rest = generation.request.id.partition("/")
            change = changes.get(arm) if rest == VICTIM else None
            yield generation if change is None else change(generation)

    monkeypatch.setattr(NativeEngine, "generate", changed)
    url = str(folder / "audit.db")
    result = invoke("run", str(folder / "suite.yaml"), "--store", url)
    assert result.exit_code == 1, result.output + str(result.stderr)[-2000:] + repr(result.exception)
    with Store.open(url, create=False) as store:
        checks = list(store.checks(store.resolve("latest")))
    return {(check.arm, check.check): check for check in checks}


def column_changed(name, change, changed_arms):
    def changed(generation):
        trace = decode(generation.trace)
        other = change(getattr(trace, name))
        if np.array_equal(getattr(trace, name), other):
            return generation
        changed_arms.add(name)
        return replace(generation, trace=encode(replace(trace, **{name: other})))

    return changed


@pytest.mark.parametrize("level", ["full", "topk"])
@pytest.mark.parametrize("kind", KINDS)
def test_columns(tmp_path, monkeypatch, kind, level):
    done = set()
    names = [c.name for c in TABLE if RecordLevel(level) in c.levels and not c.name.startswith(("spare", "mask"))]
    changes = {name.replace("_", "-"): column_changed(name, KINDS[kind], done) for name in names}
    checks = run(tmp_path, monkeypatch, changes, level)
    for arm in changes:
        if arm.replace("-", "_") not in done: continue
        mine = {k[1]: v for k, v in checks.items() if k[0] == arm}
        faults = [n for n, v in mine.items() if v.verdict is Verdict.FAULT]
        print(kind, arm, faults or "NO FAULT", [n for n,v in mine.items() if v.verdict is not Verdict.FAULT and VICTIM in v.summary])
    right = {k[1]: str(v.verdict) for k, v in checks.items() if k[0] == RIGHT}
    print(right)
