"""mlx_lm audited over HTTP without a suite of its own: `audit probe` writes it."""

from __future__ import annotations

import json
from importlib import resources

import pytest
import yaml

from engine.models.files.folder import bundled_folder
from tests.audit.invoke import invoke

pytestmark = pytest.mark.mlx
DRAFT = ("--draft-model", str(bundled_folder("bundled:draft")), "--num-draft-tokens", "4")
PROMPTS = 16


def probed(server, suite, plain):
    """The probe of a server, and its suite with fewer prompts."""
    more = ("--suite", str(suite), "--plain-url", plain.url, "--target", "bundled:target")
    done = invoke("probe", server.url, "--json", *more)
    assert done.exit_code == 0, done.stderr
    document = yaml.safe_load(suite.read_text())
    document["workloads"] = [{**document["workloads"][0], "limit": PROMPTS}]
    document["sampling"]["max_new_tokens"] = 32
    document["arms"] = document["arms"][:1]
    suite.write_text(yaml.safe_dump(document))
    return json.loads(done.stdout)


def verdicts_of(suite, folder):
    results = folder / "results.json"
    done = invoke("run", str(suite), "--store", str(folder / "audit.db"), "--results", str(results))
    assert done.exit_code in (0, 1, 3), done.output
    return {check["check"]: check["verdict"] for check in json.loads(results.read_text())["checks"]}, done


def moved(suite, server):
    """The suite at another server of the same kind."""
    document = yaml.safe_load(suite.read_text())
    document["arms"][0]["engine"]["url"] = server.url
    suite.write_text(yaml.safe_dump(document))


def test_the_probe_names_the_server_and_its_suite_passes_on_a_new_one(mlx, tmp_path):
    suite = tmp_path / "probed.yaml"
    plain, asked = mlx(), mlx(*DRAFT)
    document = probed(asked, suite, plain)
    assert (document["server"]["kind"], document["level"], document["tokens"]) == ("mlx-lm", 1, "log-probabilities")
    found = {each["feature"]: each["outcome"] for each in document["features"]}
    assert {found[name] for name in ("chat", "completions", "stream", "logprobs", "top_k", "seed")} == {"yes"}
    assert (found["token ids"], found["prompt as ids"]) == ("ignored", "refused")
    held = invoke("probe", mlx(*DRAFT).url, "--contract", "--json")
    broken = [row for row in json.loads(held.stdout)["contract"] if row["result"] != "holds"]
    # a property of mlx_lm 0.32.2: its streams have no log-probabilities
    assert [(row["expectation"], row["seen"]) for row in broken] == [
        ("fields in stream", "ids in logprobs, logprobs, top_logprobs, whole lists")
    ]
    assert held.exit_code == 1
    moved(suite, mlx(*DRAFT))
    verdicts, done = verdicts_of(suite, tmp_path)
    clean = ("liveness", "identity", "surface_parity", "greedy_equality", "reconciliation", "text", "logprob_closeness")
    assert {name: verdicts[name] for name in clean} == dict.fromkeys(clean, "certified"), done.output
    assert verdicts["configuration"] == "inconclusive"  # the server does not say whether it speculates


def test_an_answer_cut_short_spoils_later_answers_and_the_suite_finds_it(mlx, tmp_path):
    """A defect of mlx_lm 0.32.2: docs/how-to/probe-an-endpoint.md."""
    suite = tmp_path / "probed.yaml"
    plain, spoiled = mlx(), mlx(*DRAFT)
    probed(spoiled, suite, plain)
    prompts = (resources.files("suites") / "prompts" / "chat.jsonl").read_text("utf-8").splitlines()
    for line in prompts[:PROMPTS]:
        spoiled.chat(json.loads(line)["messages"], 5)
    verdicts, done = verdicts_of(suite, tmp_path)
    assert verdicts["greedy_equality"] == "fault", done.output
    assert done.exit_code == 1
