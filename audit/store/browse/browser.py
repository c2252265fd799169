"""A store opened for pages: the lists that a reader filters and pages through, each in one read-only transaction."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from audit.store import migrate
from audit.store.base.connection import is_sqlite
from audit.store.base.transactions import reads
from audit.store.browse import request_list, run_list, trends
from audit.store.store import Store
from audit.store.tables import foreign_values


class Browser(Store):
    """A store that is opened read-only, with the lists of its pages."""

    runs = reads(run_list.page)
    run_names = reads(run_list.names)
    requests = reads(request_list.page)
    request_places = reads(request_list.places)
    version_of = reads(run_list.version_of)
    trend_runs = reads(trends.runs)
    arm_sums = reads(trends.arm_sums)

    def again(self) -> Store:
        """The store as it is now, over the same engine, so that statements stay compiled.

        Raises:
            UserError: missing, unreadable, or of another revision.
        """
        migrate.make_ready(self.url, self._url, create=False)
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


def _revision(session: Session) -> str:
    return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none() or migrate.BASE)
