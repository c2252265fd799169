"""Clean servers whose chat template reacts to arguments: judged where the reference knows them, else undecided."""

import json

import pytest

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from engine.backends.engine_spec import ModelSource
from engine.backends.local_target import LocalTarget
from engine.backends.native.backend import open_models
from tests.http.script import Misdeed, Script
from tests.http.server import serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
QUIET = {"enable_thinking": False}
CHECKS = {"token_law": {"margin": 0.3, "min_tokens": 100}, "logprob_closeness": {"min_tokens": 100}}


@pytest.fixture(scope="module")
def servers(thinking):
    """Makes servers of this model."""
    backend = open_models({"target": ModelSource(str(thinking)), "draft": ModelSource("bundled:draft")})
    decode = LocalTarget(ModelSource(str(thinking))).tokens.decode
    return lambda gamma=0, **settings: serving(backend, decode, gamma, **settings)


def judged(folder, thinking, plain, speculating, rows=({},), body=None, **more):
    """The results of a sampled arm by check; each row asks two chats."""
    words = ("Hello there", "How are you?", "Tell me a story", "What is the weather like?")
    chats = [
        {"id": f"{at}-{n}", "messages": [{"role": "user", "content": text}], **row}
        for n, row in enumerate(rows)
        for at, text in enumerate(words)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    engine = {"url": plain.url, "model": "bundled", "server": "vllm", "body": body or {}}
    arm = {"name": "arm", "proposer": {"kind": "served", "gamma": 3}, "verifier": "chain", "checks": CHECKS}
    document = {
        "version": 1,
        "name": "templates",
        "seed": 5,
        "backend": "openai",
        "models": {"target": str(thinking)},
        "engine": engine,
        "samples": 4,
        "sampling": {"max_new_tokens": 32, "temperature": 1},
        "workloads": [{"name": "chats", "prompts": "chats.jsonl"}],
        "arms": [{**arm, "engine": {"url": speculating.url}}],
        **more,
    }
    path = folder / "suite.yaml"
    path.write_text(json.dumps(document))
    with Store.open(f"sqlite:///{folder / 'audit.db'}", create=True) as store:
        done = run(prepare(load_suite(path)), store, Quiet())
        return {item.check: item for item in store.checks(done.run)}


@pytest.mark.parametrize(
    "way",
    [
        {"body": {"chat_template_kwargs": QUIET}},
        {"chat_template_kwargs": QUIET},
        {"rows": [{"chat_template_kwargs": QUIET}, {"chat_template_kwargs": {"enable_thinking": True}}]},
        {"body": {"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs": QUIET},
    ],
    ids=["body", "suite", "rows", "suite before body"],
)
def test_arguments_of_the_template_are_the_references_too(servers, thinking, tmp_path, way):
    with servers() as plain, servers(gamma=3) as speculating:
        found = judged(tmp_path, thinking, plain, speculating, **way)
        sent = [body["chat_template_kwargs"] for body in speculating.settings.seen]
    assert QUIET in sent
    for check in found.values():
        assert check.verdict is Verdict.CERTIFIED, check.summary


@pytest.mark.parametrize("ids", [True, False])
def test_an_argument_that_the_server_sets_by_itself_is_no_fault(servers, thinking, tmp_path, ids):
    with servers(template=QUIET, ids=ids) as plain, servers(gamma=3, template=QUIET, ids=ids) as speculating:
        found = judged(tmp_path, thinking, plain, speculating)
    assert {check.verdict for check in found.values()} == {Verdict.INCONCLUSIVE}
    assert "the server read another prompt" in found["logprob_closeness"].summary


def test_without_any_count_of_the_prompt_the_first_tokens_tell(servers, thinking, tmp_path):
    unnamed = Misdeed(swap=('"prompt_token_ids"', '"unknown"'), times=-1)
    silent = {"template": QUIET, "counts": False}
    with (
        servers(**silent, fail=Script(always=unnamed)) as plain,
        servers(gamma=3, **silent, fail=Script(always=unnamed)) as speculating,
    ):
        found = judged(tmp_path, thinking, plain, speculating)
    for check in found.values():
        assert check.verdict is Verdict.INCONCLUSIVE, check.summary
        assert "nats away from the reference" in check.summary


def test_a_broken_engine_is_found_under_the_arguments_too(servers, thinking, tmp_path):
    with servers() as plain, servers(gamma=3, fault="accepts_everything") as speculating:
        found = judged(tmp_path, thinking, plain, speculating, chat_template_kwargs=QUIET)
    assert found["token_law"].verdict is Verdict.FAULT
