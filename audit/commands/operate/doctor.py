"""`audit doctor`: checks whether this installation can run an audit and which numerics modes hold. Changes nothing.

It reads only the shapes and weights that a probe needs and prepares no model to run.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from audit.commands.operate import installed
from audit.errors import UserError
from audit.evidence import environment as evidence
from audit.store import migrate
from audit.store.base.connection import is_sqlite, parse_url, shown, sqlite_path
from audit.store.tables.runs import REVISION
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import echo_json, echo_rows
from engine.core.errors import EngineError

if TYPE_CHECKING:
    from engine.models.probe.model_parts import ModelParts

OLDEST_PYTHON: Final = (3, 11)
REQUIRED: Final = ("numpy", "scipy", "jsonschema", "sqlalchemy", "click")
"""Packages without which nothing runs; others belong to extras."""
EXTRAS: Final = MappingProxyType(
    {("psycopg",): "stores in PostgreSQL: install specaudit[postgres]", installed.VLLM: "suites with backend: vllm"}
)
"""Optional distributions, each with its possible names, and their purpose."""


class ProbeStatus(StrEnum):
    """Result of one probe; only `fail` changes the exit code."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Probe:
    """One probed property."""

    what: str
    health: ProbeStatus
    detail: str


@click.command("doctor")
@click.option("--model", help="Source of a model to probe numerics with.  [default: bundled:target]")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@json_option
@wide_option
@store_option
def command(model: str | None, threads: int, as_json: bool, store: str) -> None:
    """Check this installation; exit 1 if an audit could not run.

    The command probes every numerics mode with a model's shapes and the thread count of `audit run`.
    A mode that fails is only a note, because `numerics: auto` picks another.
    """
    models = Path(str(resources.files("engine"))) / "bundled"
    probes = [*probe_python(), *probe_torch(), probe_store(store), *probe_models(models), *probe_extras()]
    probes += probe_numerics(model, models / "target", threads)
    if as_json:
        echo_json(probes)
    else:
        echo_rows(("what", "health", "detail"), [(probe.what, probe.health, probe.detail) for probe in probes])
    raise SystemExit(1 if any(probe.health is ProbeStatus.FAIL for probe in probes) else 0)


def probe_python() -> Iterator[Probe]:
    """Python's version, the system, and the required packages."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    new_enough = sys.version_info[:2] >= OLDEST_PYTHON
    needed = f"; {'.'.join(str(part) for part in OLDEST_PYTHON)} or newer is needed"
    yield Probe("python", _health(new_enough), version + ("" if new_enough else needed))
    yield Probe("system", ProbeStatus.OK, installed.system())
    versions = evidence.package_versions()
    for name in evidence.PACKAGES:
        absent = ProbeStatus.FAIL if name in REQUIRED else ProbeStatus.NOTE
        yield Probe(name, ProbeStatus.OK if name in versions else absent, versions.get(name, "not installed"))


def probe_torch() -> Iterator[Probe]:
    """The hardware and libraries that affect numerics."""
    mapping = evidence.hardware()
    yield Probe("cpu", ProbeStatus.OK, f"{mapping['cpu']} ({' '.join(mapping['cpu_flags']) or 'no known flags'})")
    if mapping["torch_threads"] is not None:
        yield Probe("torch threads", ProbeStatus.OK, f"{mapping['torch_threads']}, kernels {mapping['torch_cpu']}")
    yield Probe("gpus", ProbeStatus.OK, ", ".join(mapping["gpus"]) or "none")


def probe_store(url: str) -> Probe:
    """The store's revision, and whether it can be written."""
    try:
        target = parse_url(url)
        where = shown(target)
        if is_sqlite(target) and not sqlite_path(target).is_file():
            return _missing_store(where, sqlite_path(target))
        revision = migrate.current(url)
        if revision == migrate.EMPTY and is_sqlite(target):
            return Probe("store", ProbeStatus.NOTE, f"{where}: empty; the first run creates the store in it")
        migrate.require_current(revision, target)
    except UserError as error:
        return Probe("store", ProbeStatus.FAIL, str(error))
    files = (sqlite_path(target), sqlite_path(target).parent) if is_sqlite(target) else ()
    if not all(os.access(file, os.W_OK) for file in files):
        return Probe(
            "store", ProbeStatus.FAIL, f"{where}: revision {revision}, but it cannot be written; fix its permissions"
        )
    return Probe("store", ProbeStatus.OK, f"{where}: revision {revision}")


def _missing_store(where: str, path: Path) -> Probe:
    parent = next(other for other in path.absolute().parents if other.exists())
    if path.exists() or not parent.is_dir() or not os.access(parent, os.W_OK):
        return Probe("store", ProbeStatus.FAIL, f"{where}: cannot be made in {parent}; name another place with --store")
    return Probe("store", ProbeStatus.NOTE, f"{where}: does not exist; the first run creates it at revision {REVISION}")


def probe_models(folder: Path) -> Iterator[Probe]:
    """The bundled models against the digests of their cards."""
    models = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    models = [other for other in models if (other / "config.json").is_file()]
    if not models:
        yield Probe("bundled models", ProbeStatus.FAIL, "none in this installation; install specaudit again")
    for model in models:
        broken = card_mismatch(model)
        detail = "every file has the digest of its card" if broken is None else broken
        yield Probe(f"bundled:{model.name}", _health(broken is None), detail)


def card_mismatch(model: Path) -> str | None:
    """The first difference between a model's files and the digests in its `card.json`; None if they match."""
    try:
        digests = json.loads((model / "card.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its card cannot be read ({type(error).__name__}); install specaudit again"
    if not isinstance(digests, dict) or not digests:
        return "its card names no files; install specaudit again"
    for name, sha256 in sorted(digests.items()):
        path = model / name
        if not path.is_file():
            return f"{name} is missing; install specaudit again"
        with path.open("rb") as data:
            if hashlib.file_digest(data, "sha256").hexdigest() != sha256:
                return f"{name} differs from its card; install specaudit again"
    return None


def probe_extras() -> Iterator[Probe]:
    """Optional packages; a missing one is not a failure."""
    for names, use in EXTRAS.items():
        result = installed.version_of(names)
        if result is not None:
            yield Probe(result[0], ProbeStatus.OK, result[1])
        else:
            yield Probe(names[0], ProbeStatus.NOTE, f"not installed; needed for {use}")


def probe_numerics(model: str | None, bundled: Path, threads: int) -> list[Probe]:
    """Every property of every numerics mode, and which mode `auto` takes.

    Raises:
        UserError: the named model cannot be read. If the bundled one cannot, the probe is only skipped.
    """
    if find_spec("torch") is None:
        return []
    import torch

    from engine.models.loading import load_parts

    torch.set_num_threads(threads)
    try:
        parts = load_parts(model or str(bundled))
    except EngineError as error:
        if model is not None:
            raise UserError(str(error)) from error
        return [Probe("numerics", ProbeStatus.NOTE, "not probed, because the bundled target cannot be read")]
    return list(_numerics_rows(parts, model or "bundled:target"))


def _numerics_rows(parts: ModelParts, name: str) -> Iterator[Probe]:
    from engine.models import numerics
    from engine.models.probe.probe import probe

    reports = {mode: probe(parts, numerics.load(mode)) for mode in numerics.REGISTRY}
    for mode, report in reports.items():
        if not report.results:
            yield Probe(f"numerics {mode}", ProbeStatus.OK, "promises nothing")
        for result in report.results:
            held = "held" if result.held else f"fails: {result.detail}"
            unpromised = "" if result.promised else " (not promised)"
            health = ProbeStatus.OK if result.held or not result.promised else ProbeStatus.NOTE
            yield Probe(
                f"numerics {mode}: {result.name}", health, f"{held}{unpromised}, {result.microseconds / 1000:.1f} ms"
            )
    taken = next(mode for mode in numerics.PREFERENCE if reports[mode].passed)
    report = reports[taken]
    best = ProbeStatus.OK if taken == numerics.PREFERENCE[0] else ProbeStatus.NOTE
    where = f"{name}, {report.dtype}, {report.device}, threads {report.threads}, kernels {report.capability}"
    yield Probe("numerics auto", best, f"takes {taken} ({where})")


def _health(good: bool) -> ProbeStatus:
    return ProbeStatus.OK if good else ProbeStatus.FAIL
