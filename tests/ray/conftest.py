"""A cluster of Ray with several nodes on this machine, each with one processor, and a suite with its local run."""

import pytest

from tests.audit.executors.spread_suites import facts, local_run, spread_suite

NODES = 3
TRIES = 5
PATIENT = {
    # nothing leaves this machine
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # a busy machine starts processes slowly
    "RAY_worker_register_timeout_seconds": "300",
}


def patiently(start):
    """Start a node; Ray gives up after 30 seconds, which a busy machine may need more than once."""
    for _ in range(TRIES - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


@pytest.fixture(scope="session")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        made = patiently(
            lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        )
        for _ in range(NODES - 1):
            patiently(lambda: made.add_node(num_cpus=1))
        ray.init(address=made.address, log_to_driver=False, logging_level="warning")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    return spread_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def expected(suite):
    store = str(suite.with_name("local.db"))
    return facts(store, local_run(suite, store))
