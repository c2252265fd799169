"""The kinds of cases: a document of somebody else, mutated, and the commands that read it."""

from __future__ import annotations

import contextlib
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from audit.cli import COMMANDS, main
from tests.audit.store.bundle.build import restated
from tests.fuzz.contract import Violation, broken, guarded
from tests.fuzz.edits import TREE, Edit, as_text, edited_bytes, edited_tree
from tests.fuzz.fixtures import GRAMMARS, PROFILE, PROMPTS, REPORT, Fixtures, suite
from tests.fuzz.models import load_odd
from tests.fuzz.rows import edit_rows
from tests.fuzz.server import answer_odd

Edits = tuple[Edit, ...]
Attempt = Callable[[Fixtures, Path, Edits], Violation | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of case: how it is tried, the schema whose words it uses, and its share of the cases."""

    name: str
    attempt: Attempt
    schema: str | None = None
    binary: bool = False
    share: int = 1


def _first(attempts: Iterator[Violation | None]) -> Violation | None:
    return next((found for found in attempts if found is not None), None)


def suites(_fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """`validate`, and `plan` of every second case."""
    path = folder / "suite.yaml"
    path.write_bytes(as_text(suite(3), edits))
    commands = ("validate",) if edits[0].to % 4 else ("validate", "plan")
    return _first(broken(folder, command, str(path)) for command in commands)


def checks(_fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """A run whose checks have odd parameters: what `validate` accepts, `run` carries out."""
    document = suite(1)
    document["sampling"] = {"max_new_tokens": 4}
    for number, arm in enumerate(document["arms"]):
        arm["checks"] = edited_tree(arm["checks"], tuple(edit for edit in edits if edit.at % 2 == number))
    path, store = folder / "suite.yaml", folder / "audit.db"
    path.write_bytes(as_text(document, ()))
    results = ("--results", str(folder / "results.json"))
    return broken(folder, "validate", str(path)) or broken(folder, "run", str(path), "--store", str(store), *results)


def prompts(_fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """Prompt files, line by line."""
    rows = edited_tree(list(PROMPTS), edits)
    lines = [json.dumps(row) for row in (rows if isinstance(rows, list) else [rows])]
    raw = edited_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"), edits)
    (folder / "prompts.jsonl").write_bytes(raw)
    document = suite(3)
    document["workloads"] = [{"name": "odd", "prompts": "prompts.jsonl"}]
    (folder / "suite.yaml").write_text(json.dumps(document))
    return broken(folder, "validate", str(folder / "suite.yaml"))


def policies(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """The gate under a policy."""
    path, store = folder / "policy.yaml", _stored(fixtures, folder)
    path.write_bytes(as_text(fixtures.policy, edits))
    return broken(folder, "gate", "latest", "--policy", str(path), "--store", store, "--no-subject", "--trust-verdicts")


def reports(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """`attach` to a report."""
    name, raw = _report(edits)
    (folder / name).write_bytes(raw)
    return broken(folder, "attach", "latest", str(folder / name), "--store", _stored(fixtures, folder), "--failed")


def profiles(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """The gate for a deployment with its own serving profile."""
    path, store = folder / "served.yaml", _stored(fixtures, folder)
    path.write_bytes(as_text(PROFILE, edits))
    rules = ("--policy", "standard", "--serves", str(path), "--store", store, "--no-subject", "--trust-verdicts")
    return broken(folder, "gate", "latest", *rules)


def grammars(_fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """A suite whose answers have a grammar: what `validate` accepts, `run` carries out."""
    path, kind = folder / "suite.yaml", sorted(GRAMMARS)[edits[0].at % len(GRAMMARS)]
    document = suite(1)
    document["sampling"] = {"max_new_tokens": 4}
    library = "xgrammar" if edits[0].to % 2 else "llguidance"
    for arm in document["arms"]:
        asked = edited_tree({kind: GRAMMARS[kind]}, edits)
        raw = asked.get(kind) if isinstance(asked, dict) else None
        if isinstance(raw, str):
            asked[kind] = edited_bytes(raw.encode("utf-8", "surrogatepass"), edits).decode("utf-8", "replace")
        asked = {**asked, "library": library} if isinstance(asked, dict) else asked
        arm["checks"] = {"constraint_replay": {}, "replay": {}}
        arm["sampling"] = {**arm["sampling"], "structured": asked, "stop_token_ids": [2]}
    path.write_bytes(as_text(document, ()))
    store = ("--store", str(folder / "audit.db"), "--results", str(folder / "results.json"))
    return broken(folder, "validate", str(path)) or broken(folder, "run", str(path), *store)


JUNIT: Final = '<testsuites><testsuite name="s" tests="1"><testcase name="a" classname="b"/></testsuite></testsuites>'
CARD: Final = "---\nlanguage: en\ntags: [a]\n---\n# Model\n\nText.\n"
BOM: Final = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []}


def _report(edits: Edits) -> tuple[str, bytes]:
    form = edits[0].at % 5
    if form == 0:
        return "junit.xml", edited_bytes(JUNIT.encode(), edits)
    if form == 1:
        return "card.md", edited_bytes(CARD.encode(), edits)
    return ("bom.cdx.json", as_text(BOM, edits)) if form == 2 else ("results.json", as_text(REPORT, edits))


def attachments(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """`verify` with a statement, and of it as an envelope, a checkpoint or a proof."""
    path, report = folder / "statement.json", folder / "out.json"
    path.write_bytes(as_text(fixtures.statement, edits))
    shutil.copy(fixtures.home / "out.json", report)
    store = _stored(fixtures, folder)
    commands = [("verify", str(report), "--statement", str(path), "--store", store), ("verify", str(path))]
    return _first(broken(folder, *command) for command in commands)


def bundles(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """`verify` and `import` of a bundle, with the digests of its manifest made to fit or not."""
    parts = dict(fixtures.bundle)
    for edit in edits:
        name = sorted(parts)[edit.at % len(parts)]
        parts[name] = _edited_part(parts[name], edit)
    path = folder / "run.zip"
    with contextlib.suppress(ValueError, TypeError):  # a manifest of another shape stays as it is
        parts = restated(parts) if edits[0].to % 2 else parts
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    if edits[0].to % 5 == 0:
        path.write_bytes(edited_bytes(path.read_bytes(), edits))
    commands = [("verify", str(path)), ("import", str(path), "--store", str(folder / "other.db"))]
    return _first(broken(folder, *command) for command in commands[: 1 + edits[0].to % 2])


def signatures(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """A checkpoint's note, a proof, and the log's proof in a bundle that a policy with reviews judges."""
    signed, form = fixtures.signed, edits[0].at % 3
    if form == 0:
        (folder / "note").write_bytes(edited_bytes((signed / "note").read_bytes(), edits))
        key, store = str(signed / "key.pub"), _stored(fixtures, folder)
        return broken(folder, "db", "check", "--checkpoint", str(folder / "note"), "--key", key, "--store", store)
    if form == 1:
        (folder / "proof.json").write_bytes(as_text(json.loads((signed / "proof.json").read_bytes()), edits))
        return broken(folder, "db", "verify-proof", str(folder / "proof.json"), "--key", str(signed / "key.pub"))
    with zipfile.ZipFile(signed / "run.zip") as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    for edit in edits:
        parts["log.jsonl"] = _edited_part(parts["log.jsonl"], edit)
    with zipfile.ZipFile(folder / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in restated(parts).items():
            archive.writestr(name, content)
    return broken(folder, "gate", str(folder / "run.zip"), "--policy", str(signed / "policy.yaml"), "--trust-verdicts")


def _edited_part(raw: bytes, edit: Edit) -> bytes:
    if edit.op not in TREE:
        return edited_bytes(raw, (edit,))
    try:
        rows = [json.loads(line) for line in raw.splitlines()]
    except ValueError:
        return raw
    changed = edited_tree(rows, (edit,))
    return b"".join(json.dumps(row).encode() + b"\n" for row in (changed if isinstance(changed, list) else [changed]))


READERS: Final[Sequence[tuple[str, ...]]] = (
    ("show", "latest"),
    ("show", "latest", "chat/#0"),
    ("list",),
    ("db", "check"),
    ("gate", "latest", "--policy", "standard", "--no-subject"),
    ("query", "checks"),
    ("query", "acceptance", "--format", "csv"),
    ("coverage", "latest"),
    ("controls", "latest"),
    ("disclose", "latest"),
    ("checklist", "latest"),
    ("bom", "latest"),
    ("diff", "latest", "latest"),
    ("judge", "latest"),
    ("export", "latest", "--out", "out.zip"),
)


def stores(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """Everything that reads a store, on one with changed rows."""
    store = _stored(fixtures, folder)
    edit_rows(Path(store), edits)
    chosen = [READERS[(edits[0].at + number) % len(READERS)] for number in range(2)]
    with contextlib.chdir(folder):
        return _first(broken(folder, *command, "--store", store) for command in chosen)


def traces(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """A trace of the store with other bytes."""
    store = _stored(fixtures, folder)
    edit_rows(Path(store), edits, only="token_trace")
    commands = [("show", "latest", "chat-000#0"), ("judge", "latest"), ("replay", "latest")]
    command = commands[edits[0].to % len(commands)]
    return broken(folder, *command, "--store", store)


def models(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """A model folder; the engine answers with one line too."""
    return guarded(lambda: load_odd(fixtures, folder, edits), "model folder")


def answers(_fixtures: Fixtures, _folder: Path, edits: Edits) -> Violation | None:
    """What an endpoint sends: whole, in parts, and as metrics."""
    return guarded(lambda: answer_odd(edits), "server's answer")


LONG: Final = frozenset({"admission", "selftest", "doctor", "eval", "serve", "view"})
"""Commands that serve or take minutes with any arguments."""


def arguments(fixtures: Fixtures, folder: Path, edits: Edits) -> Violation | None:
    """Odd values of arguments and options of every command."""
    names = sorted(set(COMMANDS) - LONG)
    command = _command(names[edits[0].at % len(names)], edits[0].to)
    given = list(command.words)
    for edit in edits:
        options = [option for option in command.options if "--store" not in option.opts]
        if edit.op in {"set", "swap", "wrap"} and options:
            option = options[edit.to % len(options)]
            given += [option.opts[0]] if option.is_flag else [option.opts[0], _text(edit.value)]
        else:
            given.append(_text(edit.value) if edit.at % 3 else "latest")
    if any("--store" in option.opts for option in command.options):
        given += ["--store", _text(edits[0].value) if edits[0].to % 7 == 0 else _stored(fixtures, folder)]
    with contextlib.chdir(folder):
        return broken(folder, *given, raw="json" in given or "jsonl" in given or "--json" in given)


@dataclass(frozen=True, slots=True)
class _Command:
    words: tuple[str, ...]
    options: tuple[click.Option, ...]


def _command(name: str, at: int) -> _Command:
    context = click.Context(main)
    command: Any = main.get_command(context, name)
    words = [name]
    if isinstance(command, click.Group):
        inner = sorted(command.commands)
        words.append(inner[at % len(inner)])
        command = command.commands[words[-1]]
    return _Command(tuple(words), tuple(param for param in command.params if isinstance(param, click.Option)))


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # no file outside the case's folder, and no character that an argument cannot have
    return text.replace("../", "").replace("/etc/", "etc-").replace("\ud800", "\udcff").replace("\0", "")


def _stored(fixtures: Fixtures, folder: Path) -> str:
    return str(shutil.copy(fixtures.store, folder / "audit.db"))


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("suites", suites, "suite", share=4),
        Kind("checks", checks, "suite"),
        Kind("prompts", prompts, "prompt", share=2),
        Kind("policies", policies, "policy", share=2),
        Kind("profiles", profiles, "policy"),
        Kind("grammars", grammars, "prompt", share=2),
        Kind("reports", reports, share=2),
        Kind("attachments", attachments, "attachment", share=2),
        Kind("bundles", bundles, share=2),
        Kind("signatures", signatures),
        Kind("stores", stores, "results", share=3),
        Kind("traces", traces, binary=True),
        Kind("models", models, share=2),
        Kind("answers", answers, share=4),
        Kind("arguments", arguments, share=2),
    )
}
