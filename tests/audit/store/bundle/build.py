"""Bundles for tests, and bundles changed by hand."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit.store import Store
from audit.store.base.canonical import to_json
from audit.store.bundle.archive import MANIFEST

Parts = dict[str, bytes]


def exported(url: str, path: Path) -> Path:
    """The newest run of a store as a bundle."""
    with Store.open(url, create=False, read_only=True) as store:
        store.export_bundle(store.resolve("latest"), path)
    return path


def parts_of(path: Path) -> Parts:
    """The parts by name, in order."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zipped(path: Path, parts: Parts, *, kind: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip file of any parts."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def restated(parts: Parts, **facts: Any) -> Parts:
    """The parts with a manifest that fits them: what someone would write who may write everything."""
    manifest = json.loads(parts[MANIFEST]) | facts
    manifest["parts"] = {
        name: {"rows": content.count(b"\n"), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in parts.items()
        if name != MANIFEST
    }
    return parts | {MANIFEST: to_json(manifest).encode() + b"\n"}


def edited(path: Path, table: str, change: Callable[[list[Any]], object]) -> Path:
    """The bundle beside it with rows of one table changed and every digest of the manifest made to fit."""
    parts, name = parts_of(path), f"tables/{table}.jsonl"
    rows = [json.loads(line) for line in parts[name].splitlines()]
    change(rows)
    parts[name] = b"".join(to_json(row).encode() + b"\n" for row in rows)
    return zipped(path.with_name("edited.zip"), restated(parts))
