"""TensorRT-LLM's forms: numbers that stand for none, streams without null, two pages of counters, labels."""

import pytest

from audit.evidence.verdicts import Verdict
from tests.http.asking import answers, arm, asked
from tests.http.running import run_suite
from tests.http.tensorrt import TrtHandler, TrtReply

TRT = {"server": "tensorrt-llm"}


class Lost(TrtHandler):
    class reply_kind(TrtReply):
        lost = (1,)


class Iterations(TrtHandler):
    prometheus = False


@pytest.fixture
def trtllm(serve):
    def make(gamma=0, handler=TrtHandler, **settings):
        return serve(gamma, handler=handler, **settings)

    return make


@pytest.mark.medium
@pytest.mark.parametrize("handler", [TrtHandler, Iterations])
def test_counters_grow_by_what_was_drafted_on_either_page(trtllm, handler):
    with trtllm(3, handler) as server:
        engine = arm(server, proposer="served", **TRT)
        answers(engine, asked(engine))
        found = list(engine.generate(asked(engine)))
        drafted, accepted = server.engine.drafted, server.engine.accepted
    (grown,) = [each.facts["server_counters"] for each in found if "server_counters" in each.facts]
    # the first three are not counted again
    assert (grown["drafted"], grown["accepted"]) == (drafted // 2, accepted // 2)
    assert grown["drafted"] > 0


@pytest.mark.medium
def test_iterations_without_drafts_are_no_counters(trtllm):
    with trtllm(0, Iterations) as server:
        engine = arm(server, **TRT)
        found = list(engine.generate(asked(engine, max_new_tokens=2)))
        assert engine.effective_config().facts["server_counters"] is True
    assert not any("server_counters" in each.facts for each in found)


def test_settings_are_read_from_the_labels_of_the_page(trtllm):
    with trtllm(3) as server, trtllm() as plain:
        config = arm(server, proposer="served", **TRT).effective_config()
        other = arm(plain, **TRT).effective_config()
    assert config.in_effect["speculation"] is True
    assert (config.in_effect["spec_method"], config.in_effect["spec_num_tokens"]) == ("Eagle", "3")
    assert other.in_effect["speculation"] is False
    assert config.facts["version"] == "0.0.test"


def test_a_number_that_stands_for_none_is_none(trtllm):
    with trtllm(handler=Lost) as server:
        engine = arm(server, **TRT)
        (found,) = answers(engine, asked(engine, 1, max_new_tokens=4))
    assert found.facts["level"] == 0
    assert "logprobs" not in found.facts["surface"]["fields"]


@pytest.mark.medium
def test_a_stream_has_the_fields_of_the_whole_answer(trtllm):
    with trtllm(3) as server:
        engine = arm(server, proposer="served", stream="both", **TRT)
        found = answers(engine, asked(engine))
    for each in found:
        assert each.facts["surface"]["streamed_lacks"] == []
        assert each.facts["reconciliation"]["mismatches"] == []
        assert each.facts["speculation"].keys() == {"steps"}
        assert 0 < each.facts["speculation"]["steps"] <= len(each.tokens)


@pytest.fixture
def audit(trtllm, tmp_path):
    """Runs the packaged greedy suite at a plain server and a speculating one."""

    def run(handler=TrtHandler, **speculating):
        more = {
            "server: vllm": "server: tensorrt-llm, stream: both, backoff_s: 0.01",
            "served:my-model": "bundled:target",
        }
        with trtllm() as baseline, trtllm(3, handler, **speculating) as candidate:
            return run_suite("greedy", baseline.url, candidate.url, tmp_path, **more)

    return run


@pytest.mark.slow
@pytest.mark.xdist_group("http")
@pytest.mark.parametrize("handler", [TrtHandler, Iterations])
def test_a_sound_server_passes(audit, handler):
    found = audit(handler)
    verdicts = found.verdicts()
    for name in ("liveness", "identity", "surface_parity", "reconciliation", "greedy_equality", "logprob_closeness"):
        assert verdicts[name].verdict is Verdict.CERTIFIED, verdicts[name].summary
    # without the page for Prometheus nothing names the settings
    assert found.code == (0 if handler is TrtHandler else 3), found.output
    assert (verdicts["configuration"].verdict is Verdict.CERTIFIED) == (handler is TrtHandler)


class Plain(TrtHandler):
    def page(self):
        return "\n".join(line for line in super().page().splitlines() if "speculative" not in line)


FAULTS = {
    "a lost log-probability": (Lost, "surface_parity", {}, "#0: logprobs: filled in all 4 plain answers"),
    "shifted log-probabilities": (
        TrtHandler,
        "surface_parity",
        {"told": lambda told: [x - 0.5 for x in told]},
        "own list",
    ),
    "no drafts": (Plain, "configuration", {}, "speculation: requested True, effective False"),
}


@pytest.mark.slow
@pytest.mark.xdist_group("http")
@pytest.mark.parametrize("what", FAULTS)
def test_a_planted_fault_is_found(audit, what):
    handler, name, changes, words = FAULTS[what]
    found = audit(handler, **changes)
    told = found.verdicts()[name]
    assert told.verdict is Verdict.FAULT, told.summary
    assert words in told.summary
    assert found.code == 1
