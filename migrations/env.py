"""Alembic's environment: the table metadata and the database connection.

`audit db upgrade` passes its own connection; `audit.store.migrate` passes a kind of
database, to read the SQL. A developer's `alembic` command names the database with `-x url=...`.
"""

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from audit.store.tables.runs import Base


def run_on(connection: Connection) -> None:
    """Run the migrations on an open connection, in one transaction."""
    # SQLite supports transactional DDL; Alembic assumes otherwise because of older Python drivers
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, transactional_ddl=True
    )
    with context.begin_transaction():
        context.run_migrations()


def developer_url() -> str:
    """The URL of `-x url=...`."""
    url = context.get_x_argument(as_dictionary=True).get("url")
    if not url:
        raise SystemExit("name the database: alembic -x url=sqlite:///FILE ...")
    return str(url)


def run_offline() -> None:
    """Write the SQL instead of running it."""
    dialect = context.config.attributes.get("dialect")
    place = {"url": developer_url()} if dialect is None else {"dialect_name": dialect}
    context.configure(**place, target_metadata=Base.metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run on the caller's connection, or open one."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        run_on(connection)
        return
    with create_engine(developer_url(), poolclass=NullPool).connect() as own:
        run_on(own)
        own.commit()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
