"""The thread in which the engine's loop runs, apart from the event loop.

An error in the loop ends what runs, with 500, and the loop begins anew with an empty batch. Errors in a row without an
answer between them stop the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from audit.serve.records import RecordSink
from audit.serve.refusals import unavailable
from audit.serve.running_batch import RunningBatch
from engine.backends.interface import Serving

MOST_ERRORS: Final = 3


class EngineThread(threading.Thread):
    """Decodes a batch until it is closed and empty."""

    def __init__(
        self,
        engine: Serving,
        batch: RunningBatch,
        records: RecordSink,
        longest: int,
        report: Callable[[str], None],
        *,
        record: bool,
    ) -> None:
        super().__init__(name="engine-loop", daemon=True)
        self._engine, self._batch, self._records = engine, batch, records
        self._longest, self._report, self._record = longest, report, record
        self._errors = 0

    def run(self) -> None:
        """Decode."""
        while not self._decoded():
            pass

    def _decoded(self) -> bool:
        """True once nothing comes any more."""
        try:
            for generation in self._engine.serve(self._batch, self._longest, record=self._record):
                self._errors = 0
                self._records.add(self._batch.domain_of(generation.request.id), generation)
        except Exception as error:  # whatever a request makes the engine raise must not end the others' server
            return self._after(error)
        return True

    def _after(self, error: Exception) -> bool:
        self._errors += 1
        line = f"{type(error).__name__}: {error}"
        self._report(f"the engine failed: {line}")
        if self._errors < MOST_ERRORS:
            self._batch.fail(f"the engine failed: {line}")
            return False
        self._batch.close(unavailable(f"the engine failed {MOST_ERRORS} times in a row: {line}"))
        self._batch.fail(f"the engine failed: {line}", waiting=True)
        return True
