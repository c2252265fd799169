"""Nonsense in one request, quantity by quantity: the run ends with verdicts, its arm has a fault, another arm keeps its
verdicts.
"""

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


UNJUDGED = ("draft_us", "verify_us", "batch", "draft_version", "best_id", "best_score", "draft_best")
"""Columns whose values nothing repeats: times, the batch's rows, and of another engine's rows."""
BELOW_FULL = ("product", "q_token", "top_lse", "margin", "node_uniform")
"""Columns of which some nonsense has no second account at `topk`, where no whole row is on record."""
FEW = (
    "position",
    "n_drafted",
    "q_kind",
    "node_token",
    "node_parent",
    "examined_node",
    "token",
    "role",
    "row",
    "logits",
)


def every(column, value):
    return np.full_like(column, value)


def largest(column):
    return every(column, 1e30 if column.dtype.kind == "f" else np.iinfo(column.dtype).max)


def smallest(column):
    return every(column, -1e30 if column.dtype.kind == "f" else np.iinfo(column.dtype).min)


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
    if not isinstance(result.exception, SystemExit):
        raise result.exception or AssertionError("the run passes")
    assert result.exit_code == 1, result.output + result.stderr
    with Store.open(url, create=False) as store:
        checks = list(store.checks(store.resolve("latest")))
    return {(check.arm, check.check): check for check in checks}


def require_a_fault_of_each(checks, arms):
    """Each arm has a fault; the arm without nonsense has none, and what needs few tokens is certified."""
    faults = {arm for (arm, _), check in checks.items() if check.verdict is Verdict.FAULT}
    assert faults == set(arms)
    right = {name: check.verdict for (arm, name), check in checks.items() if arm == RIGHT}
    assert [right[name] for name in ("accounting", "replay", "text")] == [Verdict.CERTIFIED] * 3


def arm_of(name, kind):
    return f"{name}-{kind}".replace("_", "-").replace(" ", "-")


def column_changed(name, kind, done):
    def changed(generation):
        trace = decode(generation.trace)
        column = getattr(trace, name)
        other = KINDS[kind](column)
        if np.array_equal(column, other, equal_nan=column.dtype.kind == "f"):
            return generation
        done.add(arm_of(name, kind))
        return replace(generation, trace=encode(replace(trace, **{name: other})))

    return changed


def require_columns(folder, monkeypatch, pairs, level):
    done = set()
    changes = {arm_of(name, kind): column_changed(name, kind, done) for name, kind in pairs}
    checks = run(folder, monkeypatch, changes, level)
    faults = {arm for (arm, _), check in checks.items() if check.verdict is Verdict.FAULT}
    passed = {arm_of(*pair) for pair in pairs if level != "full" and pair[0] in BELOW_FULL} - faults
    require_a_fault_of_each(checks, done - passed)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_column_of_a_request_is_nonsense(tmp_path, monkeypatch):
    pairs = [(name, list(KINDS)[index % len(KINDS)]) for index, name in enumerate(FEW)]
    require_columns(tmp_path, monkeypatch, pairs, "full")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("level", ["full", "topk"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_column_of_a_request_is_nonsense(tmp_path, monkeypatch, kind, level):
    names = [column.name for column in TABLE if RecordLevel(level) in column.levels]
    require_columns(tmp_path, monkeypatch, [(name, kind) for name in names if not name.startswith(UNJUDGED)], level)


def header_changed(**fields):
    def changed(generation):
        trace = decode(generation.trace)
        return replace(generation, trace=encode(replace(trace, header=replace(trace.header, **fields))))

    return changed


def facts_changed(**facts):
    def changed(generation):
        return header_changed(facts={**decode(generation.trace).header.facts, **facts})(generation)

    return changed


OTHERS = {
    "no-text": lambda made: replace(made, text=""),
    "other-text": lambda made: replace(made, text="\x00 \u202e another"),
    "stopped": lambda made: replace(made, finish_reason=FinishReason.STOP),
    "at-an-end-token": lambda made: replace(made, finish_reason=FinishReason.EOS),
    "no-bytes": lambda made: replace(made, trace=b""),
    "other-bytes": lambda made: replace(made, trace=b"nonsense"),
    "half-the-bytes": lambda made: replace(made, trace=made.trace[: len(made.trace) // 2]),
    "no-prompt": header_changed(prompt=()),
    "strange-prompt": header_changed(prompt=(0, 10**6)),
    "small-vocabulary": header_changed(vocabulary=3),
    "other-second-decoding": facts_changed(decoded="nonsense"),
}
"""Changes beside the columns."""


@pytest.mark.medium
def test_something_beside_the_columns_is_nonsense(tmp_path, monkeypatch):
    require_a_fault_of_each(run(tmp_path, monkeypatch, OTHERS), OTHERS)
