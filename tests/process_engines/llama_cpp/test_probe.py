"""llama.cpp audited over HTTP without a suite of its own: `audit probe` writes it."""

import json

import pytest
import yaml

from engine.backends.llama_cpp.convert import MODEL
from tests.audit.invoke import invoke
from tests.process_engines.engines import LLAMA, only
from tests.process_engines.llama_cpp.serve import serving

pytestmark = only(LLAMA)
PROMPTS = 12


@pytest.fixture(scope="session")
def servers(converted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    files = [model.folder / MODEL for model in converted.values()]
    with serving(folder, converted["target"].folder / MODEL) as plain, serving(folder, *files) as drafting:
        yield f"{plain}/v1", f"{drafting}/v1"


def probed(url, *more):
    done = invoke("probe", url, "--json", *more)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_probe_says_whether_the_server_speculates(servers):
    plain, drafting = (probed(url) for url in servers)
    for document in (plain, drafting):
        assert (document["server"]["kind"], document["level"], document["context"]) == ("llama.cpp", 1, 1024)
        assert document["tokens"] == "log-probabilities"
    assert (plain["speculates"], drafting["speculates"]) == (False, True)
    found = {each["feature"]: each for each in drafting["features"]}
    wanted = ("chat", "completions", "stream", "repeatable", "logprobs", "seed", "top_p", "top_k", "min_p")
    assert {found[name]["outcome"] for name in (*wanted, "prompt as ids", "drafts per answer")} == {"yes"}
    # a defect of the engine: tokens from steps with drafts have no rival
    rivals = [int(each["detail"].split(", ")[1].split()[0]) for each in _logprobs(plain, drafting)]
    assert rivals[0] == 16
    assert rivals[1] < 16


def test_the_contract_holds(servers):
    for url in servers:
        done = invoke("probe", url, "--contract", "--json")
        assert {row["result"] for row in json.loads(done.stdout)["contract"]} == {"holds"}, done.stdout


def _logprobs(*documents):
    return [each for document in documents for each in document["features"] if each["feature"] == "logprobs"]


def test_the_suite_of_the_probe_finds_the_log_probabilities_of_zero_and_the_lost_rivals(servers, tmp_path):
    plain, drafting = servers
    suite, results = tmp_path / "probed.yaml", tmp_path / "results.json"
    probed(drafting, "--suite", str(suite), "--plain-url", plain, "--target", "bundled:target")
    document = yaml.safe_load(suite.read_text())
    document["workloads"] = [{**document["workloads"][0], "limit": PROMPTS}]
    document["sampling"]["max_new_tokens"] = 32
    document["arms"] = document["arms"][:1]
    suite.write_text(yaml.safe_dump(document))
    done = invoke("run", str(suite), "--store", str(tmp_path / "audit.db"), "--results", str(results))
    verdicts = {check["check"]: check["verdict"] for check in json.loads(results.read_text())["checks"]}
    assert done.exit_code == 1, done.output
    assert {name for name, verdict in verdicts.items() if verdict == "fault"} == {"logprob_closeness", "surface_parity"}
    clean = ("liveness", "configuration", "identity", "greedy_equality", "reconciliation", "text")
    assert {name: verdicts[name] for name in clean} == dict.fromkeys(clean, "certified"), done.output
