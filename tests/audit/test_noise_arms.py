"""How an engine's own noise is measured: one control for our loop, three for another engine."""

import pytest

from audit.evidence.divergence.greedy import margins
from audit.evidence.pairing import measure_noise
from audit.evidence.records import ArmKind
from audit.runs import arms
from audit.suite.loader import load_suite
from engine.core.types import Protocol
from tests.audit.checks.simulator import GREEDY, Setup, arm, changed, put, world
from tests.audit.suite_files import SUITE, write_suite


def planned(tmp_path, backend):
    text = SUITE if backend == "native" else SUITE.replace("version: 1", f"version: 1\nbackend: {backend}", 1)
    text = text if backend == "native" else text.replace("kind: ngram", "kind: prompt_lookup")
    suite = load_suite(write_suite(tmp_path, text))
    return suite, {each.name: each for each in arms.plan_arms(suite)}


@pytest.mark.parametrize(
    ("backend", "kinds"), [("native", ["alone"]), ("transformers", ["alone", "again", "reversed"])]
)
def test_controls_by_backend(tmp_path, backend, kinds):
    suite, found = planned(tmp_path, backend)
    controls = [name for name, each in found.items() if each.kind is ArmKind.CONTROL and "greedy" in name]
    assert controls == [f"baseline/greedy/{kind}" for kind in kinds]
    candidate = found["greedy"]
    assert [candidate.control, *candidate.noise] == controls
    assert [found[name].plan.rows for name in controls] == [1, *[suite.batch_size] * (len(kinds) - 1)]
    for name in controls:
        backwards = arms.slots(suite, found[name]) == arms.slots(suite, found["baseline/greedy"])[::-1]
        assert backwards == name.endswith("/reversed")


def test_noise_is_the_largest_over_all_controls():
    quiet = arm(world(1), Setup(Protocol.GREEDY, sampling=GREEDY), 2)
    margin = quiet.requests[0].trace.margin
    noisy = changed(quiet, 0, margin=put(margin, 0, margin[0] + 0.25))
    assert measure_noise(quiet, (quiet, quiet), margins).bound == 0.0
    one, two = (measure_noise(quiet, controls, margins) for controls in ((noisy,), (quiet, noisy)))
    assert one.bound == two.bound == pytest.approx(0.25, abs=1e-6)
    assert two.positions == 2 * one.positions
