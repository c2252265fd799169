"""Requests that vLLM's server logged, as the workload of a suite."""

import httpx2
import pytest

from audit.suite.loader import load_suite

from .endpoints import started
from .setting import REFERENCE

pytestmark = pytest.mark.vllm
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CHAT = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'It\'s a "test":\nlook.'}],
    "tools": [TOOL],
    "tool_choice": "auto",
}
SUITE = """\
version: 1
name: logged
backend: vllm
models: {{target: {target}}}
workloads: [{{name: traffic, source: {{file: server.log, format: vllm_log}}}}]
arms: [{{name: a, proposer: {{kind: ngram, gamma: 2}}, verifier: greedy}}]
"""


def test_the_requests_of_a_log_are_those_that_were_sent(tmp_path):
    more = {"model": "bundled", "max_tokens": 4}
    with started(tmp_path / "server.log", options=("--enable-log-requests",), level="DEBUG") as starting:
        url = starting.ready().url
        for route, body in (
            ("chat/completions", CHAT),
            ("completions", {"prompt": "Once"}),
            ("completions", {"prompt": [5, 6, 7]}),
        ):
            answer = httpx2.post(f"{url}/{route}", json={**body, **more}, timeout=120, trust_env=False)
            assert answer.status_code == 200, answer.text
    (tmp_path / "suite.yaml").write_text(SUITE.format(target=REFERENCE / "target"))
    chat, text, ids = load_suite(tmp_path / "suite.yaml").cases
    assert (list(chat.messages), len(chat.tools), chat.tool_choice) == (CHAT["messages"], 1, "auto")
    assert text.prompt == "Once"
    assert ids.tokens == (5, 6, 7)
