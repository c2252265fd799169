"""A run that answers requests as they come, from its beginning in the store to its close.

A server and the plug-ins of evaluations share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from audit.serve.engine_thread import EngineThread
from audit.serve.limits import ServeLimits
from audit.serve.meters import ServeMeters
from audit.serve.opened_arm import OpenedArm
from audit.serve.records import NoRecords, RecordSink, RecordWatcher, RunRecords, open_run
from audit.serve.refusals import unavailable
from audit.serve.running_batch import RunningBatch
from audit.serve.served_model import ServedModel
from audit.store import Store
from audit.store.base.ulid import new_ulid


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A run that takes requests in: through `batch`, with `model` to make them."""

    ulid: str
    model: ServedModel
    batch: RunningBatch
    meters: ServeMeters
    records: RecordSink


@contextmanager
def serving_run(
    opened: OpenedArm,
    name: str,
    limits: ServeLimits,
    store: Store | None,
    report: Callable[[str], None],
    watcher: RecordWatcher | None = None,
) -> Iterator[ServingRun]:
    """Decode while the body runs; at its end, what is left, then write every record and close the run.

    Args:
        opened: the arm.
        name: of the model.
        limits: its bounds.
        store: None records nothing.
        report: gets lines about failures of the engine and of the store.
        watcher: hears which records are in the store, in the thread that writes.

    Raises:
        CannotDecide: a record could not be written.
    """
    with ExitStack() as stack:
        run = new_ulid() if store is None else store.begin_run(opened.start())
        if store is not None:
            stack.enter_context(open_run(store, run))
        meters = ServeMeters(name, opened.wish.plan.gamma)
        batch = RunningBatch(run, limits, meters)
        records: RecordSink = NoRecords()
        if store is not None:
            kept = RunRecords(store, run, opened.wish.name, _breaking(batch, report), watcher)
            stack.callback(kept.require_written)
            stack.enter_context(kept.writing())
            records = kept
        engine = EngineThread(opened.serving, batch, records, limits.context, report, record=store is not None)
        model = ServedModel(name, opened.engine, opened.serving, limits, opened.fingerprint)
        stack.enter_context(_decoding(engine, batch))
        yield ServingRun(run, model, batch, meters, records)


def _breaking(batch: RunningBatch, report: Callable[[str], None]) -> Callable[[str], None]:
    """What a store does that cannot be written: nothing new is taken in."""

    def broken(line: str) -> None:
        report(line)
        batch.close(unavailable(line))

    return broken


@contextmanager
def _decoding(engine: EngineThread, batch: RunningBatch) -> Iterator[None]:
    """Decode while the body runs, and what is left at its end."""
    engine.start()
    try:
        yield
    finally:
        batch.close()
        engine.join()
