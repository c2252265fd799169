"""The owner of a database, whose statements no trigger and no foreign key stops."""

from __future__ import annotations

from sqlalchemy import text

from tests.audit.store.build import connected


class Tampered:
    """A connection whose triggers and foreign keys do not act."""

    def __init__(self, connection):
        self.connection = connection
        self.postgresql = connection.dialect.name == "postgresql"

    def __call__(self, statement):
        return self.connection.execute(text(statement))

    def off(self):
        if self.postgresql:
            self("SET session_replication_role = replica")
            return
        self.texts = self("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
        for name, _ in self.texts:
            self(f"DROP TRIGGER {name}")
        self("PRAGMA defer_foreign_keys = ON")

    def on(self):
        if self.postgresql:
            self("SET session_replication_role = DEFAULT")
            return
        for _, body in self.texts:
            self(body)


def tamper(url, *statements):
    """Run statements as the owner of the database, who leaves every trigger as it was."""
    with connected(url) as connection:
        if connection.dialect.name != "postgresql":
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.rollback()
        with connection.begin():
            owner = Tampered(connection)
            owner.off()
            for statement in statements:
                owner(statement)
            owner.on()
