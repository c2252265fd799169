"""A SLURM of one node on this machine, and a suite with its local run."""

import pytest

from tests.audit.executors.spread_suites import facts, local_run, spread_suite
from tests.slurm.cluster import slurm


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as configuration:
        yield configuration


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    return spread_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def expected(suite):
    store = str(suite.with_name("local.db"))
    return facts(store, local_run(suite, store))
