"""Compare the recorded digests of a trace with its rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from audit.evidence.structure import Violation
from engine.core.types import RecordLevel
from engine.record.row_digests import digests
from engine.record.trace import Trace


def digest_faults(trace: Trace) -> Iterator[Violation]:
    """A violation for each row with another digest; the trace's columns are well-formed.

    Below `full` there are no rows to compare.
    """
    if trace.header.level is RecordLevel.FULL:
        ends = np.cumsum(trace.n_emitted, dtype=np.int64)
        for at in np.flatnonzero(trace.logits_digest != digests(trace.logits)):
            step = int(np.searchsorted(ends, at, side="right"))
            yield Violation(step, f"token {int(trace.token[at])}: the recorded row does not have the recorded digest")
