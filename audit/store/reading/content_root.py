"""The content root: one digest of what a run asked and what came out, equal in two runs exactly if the content is.

A Merkle root (RFC 6962) over the requests in the order of (arm, case, sample). A request's leaf is the digest of its
prompt, parameters, stream, output, decisions and their numbers, and of the facts in `FACTS`. Run ids, moments,
durations and places in a batch are left out, so a resumed run has the root of one that nothing interrupted.

The root is no commitment: anyone who guesses every prompt of a run can confirm the guess by running it. Where
arithmetic depends on the batch or the machine, the numbers differ in their last bits, and so do the roots.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.records import RequestRecord
from audit.store.base.canonical import named, stored_text, to_json
from audit.store.base.merkle import merkle_root
from audit.store.reading.arm_reader import ArmRequest
from engine.record.columns import COLUMNS
from engine.record.trace import TraceHeader

LEFT_OUT: Final = {
    "draft_us": "a duration",
    "verify_us": "a duration",
    "batch": "the number of rows that happened to be active, which a resumed run changes",
}
"""Columns of a trace that the root does not cover, with the reason."""
FACTS: Final = ("decoded", "stop_begins", "tools", "stream", "ends", "constraint")
"""Facts of a trace's header that the root covers. The others are places in a batch (`call`, `row`, `round`, `unlike`),
the origin of a reused baseline, and what another engine reports about its own work."""


def content_root(requests: Iterable[ArmRequest]) -> str:
    """Hex content root of a run's requests, in any order."""
    leaves = sorted((item.arm, item.record.case_id, item.record.sample, content_hash(item.record)) for item in requests)
    texts = [to_json([*place, digest.hex()]) for *place, digest in leaves]
    return merkle_root([text.encode("ascii") for text in texts]).hex()


def content_hash(record: RequestRecord) -> bytes:
    """SHA-256 of a request's content: a JSON head, then each column with its name, type and shape."""
    trace = record.trace
    text = {"text": stored_text(record.text)}
    head = {**_header(trace.header), **named(record, "domain", "tokens", "finish_reason"), **text}
    joined = hashlib.sha256(to_json(head).encode("ascii"))
    for name in sorted(set(COLUMNS) - set(LEFT_OUT)):
        column: NDArray[Any] = np.ascontiguousarray(getattr(trace, name))
        # a column that a version of the format lacks reads as empty
        if column.size:
            joined.update(f"\n{name} {column.dtype.str} {column.shape}\n".encode("ascii"))
            joined.update(column.tobytes())
    return joined.digest()


def _header(header: TraceHeader) -> dict[str, Any]:
    """The covered fields of a trace's header; integers that may exceed 2^53 as text."""
    return {
        **named(header, "request", "level", "protocol", "lossless", "proposer", "vocabulary", "eos_ids", "prompt"),
        **named(header, "coupled_draft", "draft_versions", "kept_share"),
        "stream": str(header.stream),
        "sampling": header.sampling.document(),
        "seed": str(header.sampling.seed),
        "facts": {name: header.facts[name] for name in FACTS if name in header.facts},
    }
