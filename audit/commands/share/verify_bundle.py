"""`audit verify FILE.zip`: what a bundle proves by itself, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from audit.errors import CannotDecide
from audit.store.base.keys import read_public
from audit.store.bundle.inclusion import BundleInclusion
from audit.store.verified_bundle import OpenBundle, file_digest, opened
from audit.text.printer import echo, note

PROVED: Final = (
    "every request, step and trace, and the arms, suite, artifacts and environment that they name, are those of the "
    "record root"
)
NOT_PROVED: Final = (
    "who ran it and when, and that the record root is the one that was made then: compare it with a copy from "
    "elsewhere (an attestation, a report)"
)


def verify_bundle(path: Path, key: Path | None = None, *, judge: bool) -> int:
    """Print what the hashes of a bundle show; returns the exit code.

    Raises:
        UserError: the bundle is refused, or its checkpoint is not signed by the key.
        CannotDecide: a key is given, and the bundle has no checkpoint.
    """
    with opened(path, None if key is None else read_public(key)) as bundle:
        if key is not None and bundle.inclusion is None:
            raise CannotDecide(f"{path}: it has no checkpoint; sign one before the export: audit db checkpoint")
        for broken in bundle.broken:
            echo(f"mismatch: {broken.place}: {broken.message}")
        if bundle.broken:
            return 1
        run, checks = bundle.store.load_run(bundle.run), bundle.store.checks(bundle.run)
        requests = sum(arm.counts.requests for arm in run.arms)
        echo(f"verified: {path} holds run {run.ulid} of suite {run.suite_name}")
        echo(f"bundle      sha256:{file_digest(path)}")
        echo(f"record root {bundle.record_root}, recomputed from {requests} requests of {len(run.arms)} arms")
        echo(f"proves      {PROVED}")
        for line in inclusion_lines(bundle.inclusion):
            echo(line)
        echo(f"not proved  {NOT_PROVED}")
        if judge:
            return _judge(bundle)
        how = "compute them again: --judge"
        if bundle.inclusion is None:
            echo(f"not proved  {len(checks)} verdicts, which the record root does not cover; {how}")
    return 0


def inclusion_lines(shown: BundleInclusion | None) -> Iterator[str]:
    """Lines on the proof of a log and its limits."""
    if shown is None:
        yield "not proved  that the run is in a log: the bundle has no checkpoint"
        return
    rows = ", ".join(f"{count} {name}" for name, count in shown.proven.items())
    yield f"proves      {rows} are in a log of {shown.head.size} entries, root {shown.head.root.hex()}"
    later = ", ".join(f"{count} {name}" for name, count in shown.later.items() if count)
    if later:
        yield f"not proved  {later}, which the log got after the checkpoint"
    if shown.verified:
        yield f"proves      the key {shown.signer} signed this log"
    else:
        yield f"not proved  that {shown.signer} signed this log: verify it with the public key, --key"


def _judge(bundle: OpenBundle) -> int:
    """Compare the verdicts with those that this version computes from the record."""
    # imported late: the checks need numpy and scipy
    from audit.runs.rejudge import judge_again

    rejudged = judge_again(bundle.store, bundle.run, lambda arm: note(f"checking {arm}"))
    for line in rejudged.unknown:
        note(line)
    for other in rejudged.differences:
        echo(f"differs: {other.arm} {other.check}: {'; '.join(other.changes)}")
    same = rejudged.results - len(rejudged.differences)
    echo(f"judged      {same} of {rejudged.results} results come again from the record")
    return 1 if any(difference.verdict for difference in rejudged.differences) else 0
