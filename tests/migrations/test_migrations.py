from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from audit.errors import UserError
from audit.store import Store, migrate
from audit.store.tables.runs import REVISION, Base
from tests.audit.store.build import connected, fill_finished
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]

MIGRATIONS = Path(migrate.__file__).parents[2] / "migrations"


def downgrade(url: str) -> None:
    with connected(url) as connection:
        command.downgrade(migrate.config(connection), "base")
        connection.commit()


def differences(url: str) -> list:
    with connected(url) as connection:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata)


def objects(url: str) -> set[tuple[str, str]]:
    """Triggers and views; tables are compared with the models."""
    with connected(url) as connection:
        if connection.dialect.name == "sqlite":
            query = "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
        else:
            query = (
                "SELECT 'trigger', tgname FROM pg_trigger WHERE NOT tgisinternal"
                " UNION ALL SELECT 'view', viewname FROM pg_views WHERE schemaname = 'public'"
            )
        return {(str(kind), str(name)) for kind, name in connection.execute(text(query))}


def test_the_scripts_have_one_head_and_it_is_the_models_revision():
    assert ScriptDirectory.from_config(migrate.config()).get_heads() == [REVISION]


@pytest.mark.medium
def test_up_down_up_gives_the_models_tables(any_url):
    assert differences(any_url) == []
    first = objects(any_url)
    downgrade(any_url)
    assert migrate.current(any_url) == migrate.BASE
    assert objects(any_url) == set()
    with connected(any_url) as connection:
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}
    with pytest.raises(UserError, match=r"is at revision base, .* run: audit db upgrade"):
        Store.open(any_url, create=True)
    migrate.upgrade(any_url)
    assert migrate.current(any_url) == REVISION
    assert objects(any_url) == first
    assert differences(any_url) == []


def test_the_comparison_sees_a_difference(any_url):
    with connected(any_url) as connection, connection.begin():
        connection.execute(text("DROP INDEX ix_run_event_run_id"))
        connection.execute(text("ALTER TABLE run ADD COLUMN extra INTEGER"))
    assert {difference[0] for difference in differences(any_url)} == {"remove_column", "add_index"}


@pytest.mark.medium
def test_upgrading_twice_keeps_what_is_there(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
    migrate.upgrade(any_url)
    with Store.open(any_url, create=False) as store:
        assert store.verify_root(run)


def test_a_failed_migration_leaves_nothing(tmp_path, monkeypatch):
    from alembic.operations import Operations

    execute = Operations.execute

    def failing(self, sql, *rest, **options):
        if "CREATE VIEW v_check" in str(sql):
            raise RuntimeError("power cut")
        return execute(self, sql, *rest, **options)

    monkeypatch.setattr(Operations, "execute", failing)
    url = f"sqlite:///{tmp_path / 'half.db'}"
    with pytest.raises(RuntimeError, match="power cut"):
        migrate.upgrade(url)
    assert migrate.current(url) == migrate.EMPTY


@pytest.mark.medium
def test_it_works_from_any_folder(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from audit.store import migrate; migrate.upgrade('here.db')"
    root = str(MIGRATIONS.parent)
    done = subprocess.run([sys.executable, "-c", code, root], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert migrate.current(str(tmp_path / "here.db")) == REVISION


@pytest.mark.medium
def test_a_developer_must_name_the_database(tmp_path):
    run = [sys.executable, "-m", "alembic"]
    root = MIGRATIONS.parent
    bare = subprocess.run([*run, "current"], cwd=root, capture_output=True, text=True, check=False)
    assert bare.returncode != 0
    assert "alembic -x url=" in bare.stderr
    offline = [*run, "-x", f"url=sqlite:///{tmp_path / 'x.db'}", "upgrade", "head", "--sql"]
    done = subprocess.run(offline, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CREATE TRIGGER guard_request_update" in done.stdout


def test_migrations_import_nothing_of_ours_but_the_models():
    ours = set()
    for path in MIGRATIONS.rglob("*.py"):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.ImportFrom) and item.module:
                ours.add(item.module)
    assert {name for name in ours if name.split(".")[0] in {"audit", "engine", "schemas"}} == {
        "audit.store.tables.runs"
    }
