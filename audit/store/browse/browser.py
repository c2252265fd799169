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
from audit.store.base.transactions import reads
from audit.store.browse import request_list, run_list, trends
from audit.store.store import Store
from audit.store.tables import foreign_values

T = TypeVar("T")


class Browser:
    """An open store whose connections cannot write. Use `Browser.open`, as a context manager."""

    runs = reads(run_list.page)
    run_names = reads(run_list.names)
    requests = reads(request_list.page)
    request_places = reads(request_list.places)
    version_of = reads(run_list.version_of)
    trend_runs = reads(trends.runs)
    arm_sums = reads(trends.arm_sums)

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
        migrate.require_current(self.read(_revision), self._url)
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

    def read(self, work: Callable[[Session], T]) -> T:
        """Read in one transaction."""
        engine = self._engine.execution_options(**{READING: True})
        try:
            with Session(engine) as session, session.begin():
                return work(session)
        except DBAPIError as error:
            raise failures.failure(shown(self._url), error) from error


def _revision(session: Session) -> str:
    return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none() or migrate.BASE)
