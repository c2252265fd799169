"""The store as the rest of the harness sees it: one object, one method per question.

Opens a database of the right revision, wraps each call in a transaction and turns database errors into one clear line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from audit.errors import CannotDecide, UserError
from audit.evidence.records import ArmRecord
from audit.store import health, migrate
from audit.store.base import failures, run_lock
from audit.store.base.connection import READING, is_sqlite, open_engine, open_readonly, parse_url, shown, sqlite_path
from audit.store.base.transactions import reads, writes
from audit.store.base.values import IntegrityViolation, RequestKey, RunStatus
from audit.store.ledger import log, notes, proof
from audit.store.ledger.notes import TreeHead
from audit.store.migrate import damaged_views
from audit.store.reading import arm_reader, outcomes, reader
from audit.store.reading.attestations import Attestations
from audit.store.reading.attestations import add_decision as record_decision
from audit.store.reading.figures import Figures
from audit.store.reading.watches import Watches
from audit.store.sums import drafts
from audit.store.tables import foreign_values
from audit.store.tables.runs import find_run
from audit.store.writing import contents, erasure, integrity, request_writer, writer
from audit.store.writing.contents import WithheldContent, withholds
from audit.store.writing.erasure import ErasurePlan
from audit.store.writing.request_writer import NewRequest

T = TypeVar("T")


class Store:
    """An open provenance store. Use `Store.open`, as a context manager.

    Every method is one transaction; most are functions of a session. Methods that name a run raise `UserError`
    if the store does not have it.
    """

    begin_run = writes(writer.begin_run)
    add_pieces = writes(contents.add_pieces)
    finished = reads(reader.finished)
    run_status = reads(reader.run_status)
    set_status = writes(writer.set_status)
    add_check = writes(writer.add_check)
    add_judgement = writes(writer.add_judgement)
    judgements = reads(outcomes.judgements)
    coverage = reads(outcomes.coverage)
    checks = reads(outcomes.checks)
    copies = reads(arm_reader.copies)
    load_run = reads(reader.load_run)
    attempts = reads(reader.attempts)
    draft_versions = reads(drafts.draft_versions)
    resolve = reads(reader.resolve)
    list_runs = reads(reader.list_runs)
    plan_erasure = reads(erasure.plan)
    older_than = reads(erasure.older_than)
    erasures = reads(erasure.erasures)
    erased_requests = reads(erasure.count)
    add_decision = writes(record_decision)
    decisions = reads(outcomes.decisions)
    add_checkpoint = writes(notes.add)
    checkpoints = reads(notes.known)
    add_attachment = writes(writer.add_attachment)
    attachments = reads(outcomes.attachments)

    def __init__(self, engine: Engine, url: URL) -> None:
        self._engine = engine
        self._url = url
        self._closed = False
        self._withheld: dict[int, WithheldContent] = {}
        self._listeners: list[Callable[[str, Sequence[NewRequest]], None]] = []
        self._file = failures.identity(sqlite_path(url)) if is_sqlite(url) else None

    @classmethod
    def open(cls, url: str, *, create: bool, read_only: bool = False) -> Self:
        """Open the store at a path or URL.

        With `create`, a missing or empty SQLite file becomes a store; this method
        upgrades nothing else. With `read_only`, writing is impossible.

        Raises:
            UserError: missing, unreadable, not a store, or of another revision.
        """
        target = parse_url(url)
        migrate.make_ready(url, target, create and not read_only)
        return cls(migrate.opened(open_readonly(target) if read_only else open_engine(target), target), target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        with closing(self):
            foreign_values.blame(error, self._engine, self.url, self.damage)

    def close(self) -> None:
        """Close every connection. Loaded arms remain readable."""
        self._closed = True
        self._engine.dispose()

    @property
    def url(self) -> str:
        """The store's URL, with the password hidden."""
        return shown(self._url)

    @contextmanager
    def hold(self, run: str) -> Iterator[None]:
        """Hold the lock of a run, which ends with this process at the latest.

        Raises:
            UserError: another process is executing the run.
        """
        with ExitStack() as stack:
            with self._clear_errors():
                stack.enter_context(run_lock.held(self._engine, run))
            yield

    def add_requests(self, run: str, requests: Sequence[NewRequest]) -> None:
        """Record finished requests in one transaction.

        Raises:
            UserError: no such run or arm, the run is not running, or it has one of the requests already.
            engine.core.errors.TraceError: a generation's trace cannot be decoded.
        """
        self._withheld |= self.write(lambda session: request_writer.add_requests(session, run, requests))
        for tell in self._listeners:
            tell(run, requests)

    def listen(self, tell: Callable[[str, Sequence[NewRequest]], None]) -> None:
        """Have `tell` called with each run and the requests that were added to it."""
        self._listeners.append(tell)

    def finish_run(self, run: str, status: RunStatus, exit_code: int) -> None:
        """Close a run: status, end, number of tokens, exit code, record root, content root."""
        root = self.content_root(run)
        self.write(lambda session: writer.finish_run(session, run, status, exit_code, root))
        self._withheld.clear()

    def content_root(self, run: str) -> str | None:
        """The content root computed from the stored requests; None if a trace is missing or cannot be decoded, and
        with `text: off`, because the root has no salt.
        """
        # imported with the first trace, as in `audit.store.reading.arm_reader`
        from audit.store.reading.content_root import content_root

        if any(withholds(arm.spec) for arm in self.load_run(run).arms):
            return None
        try:
            return self.read(lambda session: content_root(arm_reader.requests(session, run)))
        except failures.StoreFailure:
            raise
        except CannotDecide:
            return None

    def load_arm(self, run: str, arm: str, keys: Collection[RequestKey] | None = None) -> ArmRecord:
        """The requests of an arm, all or the named ones, ordered by case and sample; their traces are read on access.

        Raises:
            CannotDecide: a trace is missing or cannot be decoded.
        """
        return self.read(lambda session: arm_reader.load_arm(session, run, arm, self._payload, self._withheld, keys))

    def _payload(self, row: int) -> bytes:
        if row in self._withheld:
            return self._withheld[row].payload
        try:
            return self.read(lambda session: arm_reader.payload(session, row))
        finally:
            if self._closed:
                self._engine.dispose()

    def verify_root(self, run: str) -> bool:
        """True if every recomputed hash of the run agrees with its record root; False for an unfinished run."""
        return not self.broken_places(run)

    def broken_places(self, run: str) -> tuple[IntegrityViolation, ...]:
        """Places where a run changed after it finished; empty if none."""
        return self.read(lambda session: tuple(integrity.broken_places(session, find_run(session, run))))

    def damage(self, runs: Sequence[str] = ()) -> tuple[IntegrityViolation, ...]:
        """Damage of the store: triggers, references, the log, and the named or all runs."""
        return self.read(lambda session: tuple(health.damage(session, runs)), steady=True)

    def damaged_views(self) -> tuple[IntegrityViolation, ...]:
        """The store's own views that are missing or altered; no verdict reads a view."""
        with self._clear_errors():
            return tuple(damaged_views(self._engine))

    def erase(self, plans: Sequence[ErasurePlan], reason: str, actor: str) -> None:
        """Erase the planned content in one transaction and remove its bytes from the database's files.

        Raises:
            CannotDecide: erased, but another process keeps the SQLite file's log in use.
        """
        self.write(lambda session: erasure.erase_all(session, plans, reason, actor))
        with self._clear_errors():
            erasure.shred(self._engine)

    def check_checkpoints(self, kept: Sequence[TreeHead]) -> tuple[str, ...]:
        """Why the log does not continue that of these checkpoints; empty if it continues all."""
        return self.read(lambda session: tuple(notes.compare(session, kept)), steady=True)

    def ending_entry(self, run: str) -> int | None:
        """The place in the log of the run's last state; None if the log has none."""
        return self.read(lambda session: log.last_state(session, find_run(session, run).id))

    def prove(self, run: str) -> dict[str, Any]:
        """The proof that a run's ending and results are in the log of the newest checkpoint.

        Raises:
            UserError: no checkpoint covers them.
            CannotDecide: they are not as they were logged.
        """
        return self.read(lambda session: proof.prove(session, find_run(session, run)), steady=True)

    @property
    def attestations(self) -> Attestations:
        """The signed statements, and the suites and policies that were registered."""
        return Attestations(self.read, self.write)

    @property
    def watches(self) -> Watches:
        """Watches of live servers, with their readings."""
        return Watches(self.read, self.write)

    @property
    def figures(self) -> Figures:
        """Sums over a run's requests and steps, made by the database."""
        return Figures(self.read)

    def export_bundle(self, run: str, path: Path) -> None:
        """Write a finished run to a bundle (`audit.store.bundle`).

        Raises:
            UserError: the run is not finished, or the file cannot be written.
            CannotDecide: the run is not as it was logged.
        """
        # imported late, as below: few commands need bundles
        from audit.store.bundle.transfer import write_bundle

        self.read(lambda session: write_bundle(session, find_run(session, run), path))

    def import_run(self, source: Store, run: str, origin: str) -> bool:
        """Copy a run from the verified store of a bundle, in one transaction; `origin` begins with its SHA-256.

        False if the run is there already with this content.

        Raises:
            UserError: the run is there with another content.
        """
        from audit.store.bundle.transfer import copy_run

        return source.read(lambda given: self.write(lambda session: copy_run(given, session, run, origin)))

    def write(self, work: Callable[[Session], T]) -> T:
        """Write in one transaction, and log what was written."""
        if self._file is not None and failures.identity(sqlite_path(self._url)) != self._file:
            raise failures.StoreFailure(self.url, failures.REPLACED)
        with self._clear_errors(), log.LoggedSession(self._engine) as session, session.begin():
            done = work(session)
            log.seal(session)
            return done

    def read(self, work: Callable[[Session], T], *, steady: bool = False) -> T:
        """Read in one transaction; with `steady` every query sees the same state, as SQLite's do always."""
        options: dict[str, Any] = {READING: True}
        if steady and not is_sqlite(self._url):
            options["isolation_level"] = "REPEATABLE READ"
        engine = self._engine.execution_options(**options)
        with self._clear_errors(), Session(engine) as session, session.begin():
            return work(session)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Convert database errors to one line: a duplicate raises `UserError`, any other error `StoreFailure`."""
        try:
            yield
        except IntegrityError as error:
            raise UserError(f"{self.url}: refused: {str(error.orig).strip().splitlines()[0]}") from error
        except DBAPIError as error:
            raise failures.failure(self.url, error) from error
