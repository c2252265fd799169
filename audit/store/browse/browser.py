"""A store opened for pages: the lists that a reader filters and pages through, each in one read-only transaction."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from audit.store import migrate
from audit.store.base import failures
from audit.store.base.connection import READING, is_sqlite, open_readonly, parse_url, shown
from audit.store.browse import request_list, run_list, trends
from audit.store.browse.request_list import RequestFilter, RequestPage, RequestPlaces
from audit.store.browse.run_list import RunFilter, RunPage
from audit.store.browse.trends import ArmSums, TrendRun
from audit.store.store import Store
from audit.store.tables import foreign_values

T = TypeVar("T")


class Browser:
    """An open store whose connections cannot write. Use `Browser.open`, as a context manager."""

    def __init__(self, engine: Engine, url: URL) -> None:
        self._engine = engine
        self._url = url

    @classmethod
    def open(cls, url: str) -> Browser:
        """Open the store at a path or URL.

        Raises:
            UserError: missing, unreadable, not a store, or of another revision.
        """
        target = parse_url(url)
        migrate.make_ready(url, target, create=False)
        return cls(migrate.opened(open_readonly(target), target), target)

    def __enter__(self) -> Self:
        return self

    def again(self) -> Store:
        """The store as it is now, over the same engine, so that statements stay compiled.

        Raises:
            UserError: missing, unreadable, or of another revision.
        """
        migrate.make_ready(shown(self._url), self._url, create=False)
        migrate.require_current(self._read(_revision), self._url)
        return Store(self._engine, self._url)

    def blame(self, store: Store, error: Exception) -> None:
        """Name the stored value behind an error; return if there is none, so that a bug stays one.

        Raises:
            CannotDecide: the store holds what this program never writes.
        """
        foreign_values.blame(error, self._engine, store.url, store.damage)

    def rest(self) -> None:
        """Close what is open of a file, which may be replaced; a server keeps its connections."""
        if is_sqlite(self._url):
            self._engine.dispose()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self._engine.dispose()

    def runs(self, wanted: RunFilter, cursor: str, *, newer: bool, limit: int) -> RunPage:
        """A page of runs, newest first (`run_list.page`)."""
        return self._read(lambda session: run_list.page(session, wanted, cursor, newer=newer, limit=limit))

    def run_names(self, limit: int) -> run_list.RunNames:
        """Names of suites, models and actors to choose from, at most `limit` each."""
        return self._read(lambda session: run_list.names(session, limit))

    def requests(self, run: str, wanted: RequestFilter, cursor: int, *, back: bool, limit: int) -> RequestPage:
        """A page of a run's requests (`request_list.page`)."""
        return self._read(lambda session: request_list.page(session, run, wanted, cursor, back=back, limit=limit))

    def request_places(self, run: str) -> RequestPlaces:
        """The arms, domains and checks by which a run's requests can be filtered."""
        return self._read(lambda session: request_list.places(session, run))

    def version_of(self, run: str) -> str:
        """A text that changes whenever something of a run is added or erased.

        Raises:
            UserError: no such run.
        """
        return self._read(lambda session: run_list.version_of(session, run))

    def trend_runs(self, wanted: RunFilter, limit: int) -> tuple[TrendRun, ...]:
        """The newest runs, oldest first, with their verdicts."""
        return self._read(lambda session: trends.runs(session, wanted, limit))

    def arm_sums(self, run: str) -> tuple[ArmSums, ...]:
        """Drafted and accepted tokens of the candidate arms of a run whose engines report steps."""
        return self._read(lambda session: trends.arm_sums(session, run))

    def _read(self, work: Callable[[Session], T]) -> T:
        """Read in one transaction."""
        engine = self._engine.execution_options(**{READING: True})
        try:
            with Session(engine) as session, session.begin():
                return work(session)
        except DBAPIError as error:
            raise failures.failure(shown(self._url), error) from error


def _revision(session: Session) -> str:
    return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none() or migrate.BASE)
