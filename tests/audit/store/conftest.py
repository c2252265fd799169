from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from audit.store import Store, migrate
from tests.audit.store.build import fill_finished

CLUSTER = pytest.StashKey[str]()
FILE = pytest.StashKey[Path]()
TEMPLATE = pytest.StashKey[str]()
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    path = tmp_path / "audit.db"
    shutil.copy(upgraded_file(request.config), path)
    with Store.open(str(path), create=False) as opened:
        yield opened


def upgraded_file(config: pytest.Config) -> Path:
    """An empty store to copy: the migrations take a hundred times as long as a copy."""
    if FILE not in config.stash:
        folder = Path(tempfile.mkdtemp(prefix="store"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        migrate.upgrade(str(folder / "empty.db"))
        config.stash[FILE] = folder / "empty.db"
    return config.stash[FILE]


@pytest.fixture
def run(store: Store) -> str:
    return fill_finished(store)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> str:
    """The socket folder of a PostgreSQL server of our own, one per session; skipped where none is installed."""
    # Kept with the session's configuration, because several packages of tests import this fixture.
    stash = request.config.stash
    if CLUSTER not in stash:
        stash[CLUSTER] = started(request.config)
    return stash[CLUSTER]


def missing(config: pytest.Config, reason: str) -> NoReturn:
    """Skip, unless the run is there to test PostgreSQL."""
    if config.getoption("--require-postgres"):
        pytest.fail(reason)
    pytest.skip(reason)


def started(config: pytest.Config) -> str:
    runuser = shutil.which("runuser")
    if not POSTGRES or runuser is None:
        missing(config, "no PostgreSQL server binaries on this machine")
    as_postgres = [runuser, "-u", "postgres", "--"]
    # Not a folder of pytest's: those are closed to other users, and the server refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    binaries, data = POSTGRES[-1].parent, folder / "data"
    options = f"-c listen_addresses= -k {folder} -c fsync=off"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    initialise = [binaries / "initdb", "-D", data, "-A", "trust", "-E", "UTF8", "--no-sync"]
    control = [*as_postgres, binaries / "pg_ctl", "-D", data]
    try:
        shutil.chown(folder, "postgres")
        subprocess.run([*as_postgres, *initialise], **quiet)
        subprocess.run([*control, "-w", "-o", options, "start"], **quiet)
    except (LookupError, PermissionError, subprocess.CalledProcessError) as error:
        missing(config, f"PostgreSQL cannot be started here: {error}")
    config.add_cleanup(lambda: subprocess.run([*control, "-m", "immediate", "stop"], **quiet))
    return str(folder)


@pytest.fixture
def postgres(cluster: str, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    return created(cluster, f"t{abs(hash(request.node.nodeid)):x}")


def created(cluster: str, name: str, template: str = "template1") -> str:
    """The URL of a new database, which is a copy of the template."""
    import psycopg

    with psycopg.connect(host=cluster, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
    return f"postgresql://postgres@/{name}?host={cluster}"


def upgraded_template(config: pytest.Config, cluster: str) -> str:
    """The name of an upgraded, empty database."""
    if TEMPLATE not in config.stash:
        migrate.upgrade(created(cluster, "upgraded"))
        config.stash[TEMPLATE] = "upgraded"
    return config.stash[TEMPLATE]


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An upgraded store in each kind of database."""
    if request.param == "sqlite":
        shutil.copy(upgraded_file(request.config), tmp_path / "any.db")
        return f"sqlite:///{tmp_path / 'any.db'}"
    cluster = request.getfixturevalue("cluster")
    name = f"t{abs(hash(request.node.nodeid)):x}"
    return created(cluster, name, upgraded_template(request.config, cluster))
