"""docs/how-to/add-a-backend.md followed to the letter: its files, its registry line and its suite, copied and run."""

import ast
import importlib
import json
import re
import sys

import numpy as np
import pytest

from engine import backends
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.evidence import ArmSettings
from engine.backends.interface import Prompt
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.registry import BACKENDS
from engine.core.types import Protocol, Request, SamplingParams
from engine.record.effective import LoopOwner
from engine.record.trace import decode
from tests.audit.agreement import differences, write_suite
from tests.audit.invoke import invoke
from tests.support.engine_suites import ROOT

PAGE = (ROOT / "docs" / "how-to" / "add-a-backend.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^### `copycat/(\w+\.py)`\n\n[^`]*```python\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL))
(LINE,) = re.findall(r"^```python\n(\"copycat\": [^\n]+)\n```$", PAGE, re.MULTILINE)
(SUITE,) = re.findall(r"^```yaml\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL)
ACCEPTED = "accepted = next((at for at, token in enumerate(drafted) if token != wanted[at]), len(drafted))"
PLAIN = EngineSpec(Protocol.GREEDY)
COPYING = EngineSpec(Protocol.GREEDY, proposer="copy", gamma=4)
TEXTS = ("def add(a, b):\n    return a + b\n\ndef add3(a, b, c):\n", "one two one two one")


@pytest.fixture
def files():
    """The page's files; a test may change one before it takes `copycat`."""
    return dict(FILES)


@pytest.fixture
def copycat(files, tmp_path, monkeypatch):
    """The backend of the page, registered by the page's line."""
    folder = tmp_path / "package" / "copycat"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(folder.parent)])
    importlib.invalidate_caches()
    for name, value in ast.literal_eval(f"{{{LINE}}}").items():
        monkeypatch.setitem(BACKENDS, name, value)
    yield backends.open_backend("copycat", {"target": ModelSource("bundled:target")})
    for name in [name for name in sys.modules if name.startswith("engine.backends.copycat")]:
        del sys.modules[name]


def generated(engine):
    sampling = SamplingParams(max_new_tokens=24)
    requests = [Request(f"r{at}", engine.encode(Prompt(text=text)), sampling, at) for at, text in enumerate(TEXTS)]
    return list(engine.generate(requests))


def test_the_page_has_every_file_that_it_names():
    assert set(FILES) == {"__init__.py", "models.py", "backend.py", "evidence.py", "decoder.py"}


@pytest.mark.medium
def test_the_backend_of_the_page_keeps_the_contract(copycat):
    engine, plain = copycat.arm(COPYING), copycat.arm(PLAIN)
    answers = generated(engine)
    assert [each.tokens for each in answers] == [each.tokens for each in generated(plain)]
    traces = [decode(each.trace) for each in answers]
    assert sum(trace.n_accepted for trace in traces) > 0
    for answer, trace in zip(answers, traces, strict=True):
        assert (tuple(trace.token), trace.header.facts["reconciliation"]["mismatches"]) == (answer.tokens, [])
        assert answer.text == answer.facts["decoded"]
        rows = decode(engine.anchor(answer.request, answer.tokens).trace).logits
        assert tuple(np.argmax(rows, axis=1)) == answer.tokens


def test_what_it_declares_is_what_it_reports(copycat):
    engine = copycat.arm(COPYING)
    shown = backends.declared("copycat").arm(ArmSettings(COPYING, SamplingParams(), ModelSource("bundled:target")))
    effective = engine.effective_config()
    assert (shown.decoder, effective.decoder) == (LoopOwner.FOREIGN, LoopOwner.FOREIGN)
    assert (shown.level, shown.protocol) == (engine.evidence_level(), Protocol.GREEDY)
    assert effective.in_effect == effective.requested == {"longest": 4}
    assert copycat.arm(PLAIN).effective_config().in_effect == {"longest": 0}


def test_it_refuses_what_it_lacks(copycat):
    engine = copycat.arm(PLAIN)
    for sampling, error in (
        (SamplingParams(temperature=1.0), InvalidRequest),
        (SamplingParams(repetition_penalty=1.3), InvalidRequest),
        (SamplingParams(max_new_tokens=10_000), CapacityError),
    ):
        with pytest.raises(error, match=r"^request r0: "):
            engine.require([Request("r0", (1, 2), sampling, 0)])
    with pytest.raises(InvalidRequest, match="copycat has no option 'width'"):
        copycat.arm(EngineSpec(Protocol.GREEDY, options={"width": 2}))


def verdicts(folder):
    suite, results = folder / "copycat.yaml", folder / "results.json"
    suite.write_text(SUITE.replace("suites/prompts", str(ROOT / "suites" / "prompts")), encoding="utf-8")
    done = invoke("run", str(suite), "--store", f"sqlite:///{folder / 'audit.db'}", "--results", str(results))
    assert done.exit_code in (0, 1), done.output
    checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
    return done.exit_code, {each["check"]: each["verdict"] for each in checks}


@pytest.mark.slow
def test_the_suite_of_the_page_is_certified(copycat, tmp_path):
    code, found = verdicts(tmp_path)
    assert set(found.values()) == {"certified"}
    assert code == 0


@pytest.mark.slow
class TestBroken:
    @pytest.fixture
    def files(self):
        assert ACCEPTED in FILES["decoder.py"]
        return {**FILES, "decoder.py": FILES["decoder.py"].replace(ACCEPTED, "accepted = len(drafted)")}

    def test_drafts_that_are_accepted_unseen_are_found(self, copycat, tmp_path):
        code, found = verdicts(tmp_path)
        assert found["greedy_equality"] == "fault"
        assert code == 1


@pytest.mark.slow
def test_the_plan_promises_no_check_that_does_not_run(copycat, tmp_path):
    arms = [{"name": "copies", "proposer": {"kind": "copy", "gamma": 4}, "verifier": "greedy"}]
    models = {"target": "bundled:target"}
    document = {"backend": "copycat", "models": models, "sampling": {"max_new_tokens": 12}, "batch_size": 1}
    suite = write_suite(tmp_path, {**document, "arms": arms}, ("abc", "hello there"))
    assert differences(suite, tmp_path) == {}
