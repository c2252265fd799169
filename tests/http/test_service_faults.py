"""Every fault of a service, planted into an arm at a clean endpoint whose suite names no check: no pass."""

import json

import pytest

from engine.core.registry import SERVICE_FAULTS, resolve
from tests.http.server import serving
from tests.http.test_faults_by_default import WEIGHTS, shape
from tests.support.readme_suite import audited

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]


def rows(**keys):
    return [{"id": f"r{n}", "messages": [{"role": "user", "content": text}], **keys} for n, text in enumerate(WORDS)]


WORDS = ("Hello there", "How are you?", "Tell me a story", "What is the weather like?", "Count to ten", "Name a city")
STREAMED = {"stream": "both"}
GREEDY = {"sampling": {"temperature": 0}}
NEEDS = {
    "length_before_stop": {"sampling": {"max_new_tokens": 24, "stop": ["e"]}},
    "penalties_dropped": {"sampling": {"max_new_tokens": 24, "presence_penalty": 1.5}},
    "one_seed": {"samples": 3},
}


@pytest.mark.parametrize("name", [None, *SERVICE_FAULTS])
def test_x(name, backend, decode, tmp_path):
    with (
        serving(backend, decode) as plain,
        serving(backend, decode, 4) as sound,
        serving(backend, decode, 4) as speculating,
    ):
        more = NEEDS.get(name, {})
        s = shape(plain, sound, speculating, WEIGHTS, beside=True, more=more)
        if name:
            s.arm["fault"] = name
        done = audited(tmp_path, s)
        print("RESULT", name, done.code, done.alone(), done.by("fault"), {k: v["summary"][:160] for k, v in done.checks["rejection"].items() if v["verdict"] == "inconclusive"})
    assert done.alone() != 0
