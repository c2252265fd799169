"""What is written loads as what it was."""

from dataclasses import replace

import pytest
from ruamel.yaml import YAML

from audit.evidence.coverage.rule import CoverageRule
from audit.minimize.suite_writer import SUITE_FILE, files_of
from audit.suite.loader import load_suite
from audit.text.documents import packaged_file
from engine.core.types import SamplingParams

SUITES = (
    "quickstart.yaml",
    "equality.yaml",
    "medium.yaml",
    "safety.yaml",
    "structured.yaml",
    "tools.yaml",
    "known_bad/typical_undeclared.yaml",
)


def again(suite, folder):
    for name, content in files_of(suite, "a comment").items():
        (folder / name).write_bytes(content)
    loaded = load_suite(folder / SUITE_FILE)
    return replace(loaded, path=suite.path, sha256=suite.sha256, document=suite.document)


@pytest.mark.medium
@pytest.mark.parametrize("name", SUITES)
def test_every_packaged_arm_comes_back(name, tmp_path):
    suite = load_suite(packaged_file(name))
    for arm in suite.arms:
        one = replace(suite, arms=(arm,), samples=1)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        assert again(one, folder) == one, arm.name


def test_parameters_tokens_repetitions_and_company_come_back(tmp_path):
    suite = load_suite(packaged_file("quickstart.yaml"))
    sampling = SamplingParams(
        temperature=1e-05,
        top_p=0.95,
        logit_bias=((3, -1.5),),
        bad_words=((1, 2),),
        stop=("no: yes", "#"),
        ignore_eos=True,
    )
    arm = replace(suite.arms[1], sampling=sampling, beside=SamplingParams(top_k=4), checks={"law": {"alpha": 0.01}})
    arm = replace(arm, coverage=CoverageRule(directed=False))
    case = replace(suite.cases[0], messages=(), tools=({"name": "go"},), tokens=(5, 0, 7), samples=(3, 1))
    other = replace(suite.cases[1], messages=(), tools=(), prompt="x: 'y'\u2028", domain="1e3")
    one = replace(suite, arms=(arm,), samples=1, cases=(case, other), seed=2**62)
    assert again(one, tmp_path) == one


def test_the_head_is_a_comment(tmp_path):
    suite = load_suite(packaged_file("quickstart.yaml"))
    text = files_of(replace(suite, arms=suite.arms[:1]), "a: b")[SUITE_FILE].decode()
    assert text.startswith("# a: b\nversion: 1\n")
    assert "a" not in YAML(typ="safe").load(text)
