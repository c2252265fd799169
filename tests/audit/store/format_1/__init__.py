"""A store, a bundle and a trace of each level as the first version with format 1 wrote them; `write` made them once."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

from audit.store import Store
from engine.core.types import RecordLevel
from engine.record.columns import COLUMNS
from engine.record.trace import Trace, decode
from tests.audit.store.build import fill_finished, generation

HOME = Path(__file__).parent
FACTS = HOME / "facts.json"


def digest_of(trace: Trace) -> str:
    """Hex SHA-256 over the values of all columns with entries: later versions may know further ones."""
    found = hashlib.sha256(repr((trace.header.request, trace.header.sampling.seed, trace.header.prompt)).encode())
    for name in (name for name in COLUMNS if len(getattr(trace, name))):
        column = getattr(trace, name)
        found.update(f"{name} {column.dtype.str} {column.shape}".encode() + column.tobytes())
    return found.hexdigest()


def write() -> None:
    """Write the files anew: only for a format that no version released."""
    path = HOME / "audit.db"
    with Store.open(str(path), create=True) as store:
        run = fill_finished(store)
        root = store.load_run(run).record_root
        store.export_bundle(run, HOME / "run.zip")
    (HOME / "audit.db.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    path.unlink()
    facts = {"run": run, "record_root": root, "traces": {}}
    for level in RecordLevel:
        made = generation(((4, 2), (3, 3)), seed=3, level=level)
        (HOME / f"{level}.trace").write_bytes(made.trace)
        facts["traces"][level] = digest_of(decode(made.trace))
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="ascii")
