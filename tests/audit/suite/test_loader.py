from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.errors import UserError
from audit.suite.loader import find_suite, load_suite
from audit.suite.spec import Suite
from audit.text.documents import packaged_file, parse_json, parse_yaml
from engine.core.types import Protocol, RecordLevel
from tests.audit.invoke import invoke
from tests.audit.suite_files import CHAT, SUITE, TOOLS, write_suite
from tests.support.tiers import slow_unless

ENDPOINT = """
version: 1
name: endpoint
backend: openai
models: {{target: "{target}"}}
engine: {{url: "http://127.0.0.1:8000/v1", {engine}}}
workloads: [{{name: tools, prompts: tools.jsonl}}]
arms:
  - {{name: served, proposer: {{kind: served, gamma: 3}}, verifier: greedy}}
  - {{name: drawn, proposer: {{kind: served, gamma: 3}}, verifier: chain, sampling: {{temperature: 1}}}}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return load_suite(write_suite(tmp_path))


class TestValid:
    def test_values(self, suite, tmp_path):
        greedy, sampled = suite.arms
        assert (suite.name, suite.seed, suite.samples, suite.batch_size, suite.backend) == ("trial", 7, 2, 8, "native")
        assert suite.models["target"].source == str(tmp_path / "target")
        assert suite.models["draft"].loader == "lean"
        assert suite.models["draft"].numerics is None
        assert greedy.verifier is Protocol.GREEDY
        assert greedy.sampling.max_new_tokens == sampled.sampling.max_new_tokens == 16
        assert (greedy.proposer.kind, greedy.proposer.gamma, greedy.proposer.model) == ("draft_model", 4, "draft")
        # the config.json of the trial states no vocabulary
        assert (greedy.record, greedy.requested_record) == (RecordLevel.TOPK, "auto")
        assert sampled.sampling.temperature == 0.8
        assert suite.document["arms"][0]["proposer"]["gamma"] == 4

    def test_cases_are_named_by_workload_and_cut_at_the_limit(self, suite):
        assert [case.id for case in suite.cases] == ["tools/a", "tools/b", "chat/a"]
        assert [case.domain for case in suite.cases] == ["tools", "tale", "chat"]
        assert suite.cases[0].tools == ({"name": "weather"},)
        assert suite.cases[1].prompt == "Once"

    def test_checks_merge_the_suites_parameters_and_default_to_the_standard_ones(self, suite):
        from audit.checks.base.interface import EVERYTHING
        from audit.checks.battery import standard_checks
        from audit.evidence.accounts import ArmOutline

        greedy, sampled = suite.arms
        assert greedy.checks == {"greedy_equality": {}, "replay": {}}
        assert set(sampled.checks) == set(standard_checks(ArmOutline(EVERYTHING, 3, greedy=False, calls=True)))
        assert sampled.checks["law"] == {"leak_margin": 0.06}

    @pytest.mark.parametrize(
        ("target", "engine", "decoded", "followed"),
        [
            ("served:m", "server: vllm", True, False),
            ("served:m", "server: vllm, logprobs: 0", False, False),
            ("bundled:target", "server: vllm, logprobs: 0", True, True),
            ("bundled:target", "server: openai, logprobs: 0", False, False),
        ],
    )
    def test_tokens_are_decoded_again_or_followed_where_they_can_be(self, tmp_path, target, engine, decoded, followed):
        text = ENDPOINT.format(target=target, engine=engine)
        arms = load_suite(write_suite(tmp_path, text)).arms
        assert ["text" in arm.checks for arm in arms] == [decoded] * 2
        assert ["token_law" in arm.checks for arm in arms] == [followed] * 2
        # samples of the baseline stand in for the law
        assert ["two_sample" in arm.checks for arm in arms] == [False, not followed]

    def test_an_arms_parameters_win_over_the_suites(self, tmp_path):
        text = SUITE.replace("[greedy_equality, replay]", "{law: {leak_margin: 0.1}, replay: {}}")
        arm = load_suite(write_suite(tmp_path, text)).arms[0]
        assert arm.checks == {"law": {"leak_margin": 0.1}, "replay": {}}

    def test_whole_floats_become_integers(self, tmp_path):
        text = SUITE.replace("max_new_tokens: 16", "max_new_tokens: 16.0, logit_bias: [[3, 1]], stop_token_ids: [2.0]")
        sampling = load_suite(write_suite(tmp_path, text)).arms[0].sampling
        assert isinstance(sampling.max_new_tokens, int)
        assert isinstance(sampling.temperature, float)
        assert sampling.logit_bias == ((3, 1.0),)
        assert [type(token) for token in sampling.stop_token_ids] == [int]

    def test_digest_is_over_the_yaml_and_every_prompt_file(self, suite):
        parts = [hashlib.sha256(text.encode()).digest() for text in (SUITE, TOOLS, CHAT)]
        assert suite.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()

    def test_digest_changes_with_one_byte_of_a_prompt_beyond_the_limit(self, suite, tmp_path):
        (tmp_path / "chat.jsonl").write_text(CHAT.replace("Bye", "By!"))
        assert load_suite(tmp_path / "suite.yaml").sha256 != suite.sha256

    def test_paths_are_relative_to_the_suite(self, tmp_path, monkeypatch):
        write_suite(tmp_path)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        assert len(load_suite("../suite.yaml").cases) == 3

    def test_an_alias_is_expanded(self, tmp_path):
        text = SUITE.replace("{kind: ngram, gamma: 3}", "&p {kind: ngram, gamma: 3}").replace(
            "verifier: chain", "verifier: chain\n    record: tokens"
        )
        text += "  - {name: third, proposer: *p, verifier: gumbel}\n"
        suite = load_suite(write_suite(tmp_path, text))
        assert suite.arms[2].proposer == suite.arms[1].proposer
        assert suite.arms[2].sampling.greedy
        assert suite.arms[1].record is RecordLevel.TOKENS

    def test_scripted_models_have_a_seed(self, tmp_path):
        text = SUITE.replace("samples: 2", "backend: scripted").replace("target: target", "target: scripted:3")
        suite = load_suite(write_suite(tmp_path, text.replace("{source: draft}", "scripted:4")))
        assert [model.source for model in suite.models.values()] == ["scripted:3", "scripted:4"]

    def test_a_verifier_may_be_a_mapping_with_options(self, tmp_path):
        text = SUITE.replace("verifier: chain", "verifier: {kind: typical, epsilon: 0.1}")
        greedy, sampled = load_suite(write_suite(tmp_path, text)).arms
        assert (sampled.verifier, sampled.verifier_options) == (Protocol.TYPICAL, {"epsilon": 0.1})
        assert (greedy.verifier, greedy.verifier_options) == (Protocol.GREEDY, {})

    def test_a_mapping_without_options_is_its_kind(self, tmp_path):
        text = SUITE.replace("verifier: chain", "verifier: {kind: chain}")
        sampled = load_suite(write_suite(tmp_path, text)).arms[1]
        assert (sampled.verifier, sampled.verifier_options) == (Protocol.CHAIN, {})

    def test_a_byte_order_mark_is_not_content(self, tmp_path):
        path = write_suite(tmp_path)
        path.write_bytes(b"\xef\xbb\xbf" + SUITE.encode())
        assert load_suite(path).name == "trial"

    def test_a_line_separator_inside_a_prompt_is_text(self, tmp_path):
        path = write_suite(tmp_path)
        (tmp_path / "tools.jsonl").write_text('{"id": "a", "prompt": "one\u2028two"}\n')
        assert load_suite(path).cases[0].prompt == "one\u2028two"


class TestPackaged:
    def test_names_resolve_to_the_package(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        wanted = packaged_file("quickstart.yaml")
        assert wanted is not None
        if not wanted.is_file():
            pytest.skip("this checkout has no quickstart suite")
        assert {find_suite(name) for name in ("quickstart", "quickstart.yaml", "suites/quickstart.yaml")} == {wanted}

    def test_a_file_on_disk_wins(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "quickstart").write_text("x")
        assert find_suite("quickstart") == Path("quickstart")

    @pytest.mark.parametrize("inside", ["../pyproject.toml", "/etc/hosts", "", "a/../../b"])
    def test_a_path_cannot_leave_the_package(self, inside):
        assert packaged_file(inside) is None


@dataclass(frozen=True)
class Broken:
    """One mistake: replace `old` by `new` in the valid suite."""

    old: str
    new: str
    line: int
    says: str


BROKEN = {
    "bad YAML": Broken("models:", "models: [", 7, "bad YAML"),
    "tab": Broken("  target: target", "\ttarget: target", 6, "column 1: bad YAML"),
    "control character": Broken("trial", "tri\x07al", 2, "bad YAML"),
    "undefined alias": Broken("seed: 7", "seed: *x", 3, "undefined alias"),
    "duplicate key": Broken("seed: 7", "seed: 7\nseed: 8", 4, '"seed" appears twice'),
    "number as key": Broken("seed: 7", "7: seed", 3, "not plain text"),
    "tag": Broken("seed: 7", "seed: !!python/name:os.system x", 3, "tag"),
    "not finite": Broken("0.8", ".inf", 25, "finite"),
    "two documents": Broken("arms:", "---\narms:", 14, "one document per file"),
    "deep": Broken("seed: 7", "seed: " + "[" * 60 + "]" * 60, 3, "flatten"),
    "very deep": Broken("seed: 7", "seed: " + "[" * 5000, 1, "flatten"),
    "recursive alias": Broken("seed: 7", "seed: &a [*a]", 3, "flatten"),
    "alias bomb": Broken(
        "seed: 7",
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "\n".join(f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]" for old, new in zip("abcde", "bcdef", strict=True)),
        3,
        "fewer aliases",
    ),
    "wrong version": Broken("version: 1", "version: 2", 1, "write 1"),
    "version as text": Broken("version: 1", 'version: "1"', 1, "write 1"),
    "unknown key": Broken("samples: 2", "sample: 2", 4, "did you mean samples?"),
    "unknown arm key": Broken(
        "verifier: chain",
        "verifier: chain\n    gama: 3",
        25,
        "accepted: beside, cancel_beside, checks, coverage, engine, fault, filters, name",
    ),
    "unknown sampling key": Broken("{temperature: 0.8}", "{temprature: 0.8}", 25, "did you mean temperature?"),
    "seed in sampling": Broken("{temperature: 0.8}", "{seed: 1}", 25, "share their random numbers; remove it"),
    "missing name": Broken("name: trial\n", "", 1, "lacks the key name; add it"),
    "missing target": Broken("  target: target\n", "", 5, "models lacks the key target"),
    "missing gamma": Broken("      gamma: 4\n", "", 16, "arms[0].proposer lacks the key gamma"),
    "missing verifier": Broken("    verifier: chain\n", "", 22, "lacks the key verifier"),
    "missing arms": Broken(SUITE[SUITE.index("arms:") :], "", 1, "lacks the key arms"),
    "no arms": Broken(SUITE[SUITE.index("arms:") :], "arms: []", 14, "fewer than 1"),
    "a list": Broken(SUITE, "- 1\n- 2\n", 1, "write a mapping"),
    "a word": Broken(SUITE, "suite\n", 1, "write a mapping"),
    "seed as text": Broken("seed: 7", "seed: seven", 3, 'seed is "seven"; write an integer'),
    "seed negative": Broken("seed: 7", "seed: -7", 3, "at least 0"),
    "seed too large": Broken("seed: 7", "seed: 9223372036854775808", 3, "at most"),
    "samples boolean": Broken("samples: 2", "samples: true", 4, "write an integer"),
    "gamma zero": Broken("gamma: 4", "gamma: 0", 19, "arms[0].proposer.gamma is 0; write a number of at least 1"),
    "gamma negative": Broken("gamma: 4", "gamma: -1", 19, "at least 1"),
    "gamma fraction": Broken("gamma: 4", "gamma: 2.5", 19, "write an integer"),
    "gamma text": Broken("gamma: 4", "gamma: four", 19, "write an integer"),
    "bad arm name": Broken("name: greedy", "name: gree dy", 15, "matches"),
    "bad model name": Broken("  draft: {", "  dr aft: {", 7, "matches"),
    "model number": Broken("target: target", "target: 7", 6, "write text or a mapping"),
    "model folder missing": Broken("target: target", "target: nowhere", 6, "no model folder"),
    "model without config": Broken("target: target", "target: .", 6, "config.json"),
    "model not on the hub": Broken("target: target", "target: hf:name", 6, "hf:ORG/NAME"),
    "model not bundled": Broken("target: target", "target: bundled:nonsense", 6, "no bundled model"),
    "model of the other backend": Broken("target: target", "target: scripted:3", 6, "no source for this backend"),
    "folder for the scripted backend": Broken("samples: 2", "backend: scripted", 6, "write scripted:SEED"),
    "scripted without a seed": Broken(
        "samples: 2\nmodels:\n  target: target", "backend: scripted\nmodels:\n  target: scripted:x", 6, "scripted:SEED"
    ),
    "model dtype": Broken("{source: draft}", "{source: draft, dtype: float33}", 7, "did you mean float32?"),
    "model numerics": Broken("{source: draft}", "{source: draft, numerics: tilde}", 7, "accepted: auto, exact, fast"),
    "numerics of transformers": Broken(
        "{source: draft}", "{source: draft, loader: hf, numerics: tiled}", 7, "loader hf has no numerics tiled"
    ),
    "numerics of a target": Broken(
        "target: target", "target: {source: target, numerics: int8}", 6, "int8 rounds the weights, so it is for drafts"
    ),
    "numerics of a script": Broken(
        "samples: 2\nmodels:\n  target: target\n  draft: {source: draft}",
        "backend: scripted\nmodels:\n  target: {source: 'scripted:1', numerics: fast}",
        6,
        "remove numerics",
    ),
    "revision of a folder": Broken("{source: draft}", "{source: draft, revision: main}", 7, "only an hf: source"),
    "prompts missing": Broken("prompts: tools.jsonl", "prompts: gone.jsonl", 9, "no prompt file"),
    "prompts folder": Broken("prompts: tools.jsonl", "prompts: target", 9, "not a file"),
    "prompts outside": Broken("prompts: tools.jsonl", "prompts: 'suites:../x'", 9, "no prompt file"),
    "limit zero": Broken("limit: 1", "limit: 0", 10, "at least 1"),
    "duplicate workload": Broken("name: chat", "name: tools", 10, "already used in workloads"),
    "duplicate arm": Broken("name: sampled", "name: greedy", 22, "already used in arms"),
    "unknown verifier": Broken("verifier: chain", "verifier: chian", 24, "did you mean chain?"),
    "unknown verifier in a mapping": Broken(
        "verifier: chain", "verifier: {kind: tipical}", 24, "did you mean typical?"
    ),
    "verifier without kind": Broken("verifier: chain", "verifier: {epsilon: 0.1}", 24, "lacks the key kind"),
    "verifier as a list": Broken("verifier: chain", "verifier: [chain]", 24, "write text or a mapping"),
    "unknown verifier option": Broken(
        "verifier: chain",
        "verifier:\n      kind: typical\n      delta: 0.3\n      epsilom: 0.1",
        27,
        "verifier typical has no option 'epsilom'; it has: delta, epsilon",
    ),
    "option of a rule that has none": Broken(
        "verifier: chain", "verifier: {kind: chain, delta: 1}", 24, "it has: none"
    ),
    "verifier option out of range": Broken(
        "verifier: chain", "verifier: {kind: ensemble, weight: 2}", 24, "weight must be a number from 0 to 1, not 2;"
    ),
    "verifier option as text": Broken(
        "verifier: chain",
        "verifier: {kind: typical, delta: high}",
        24,
        'arms[1].verifier.delta is "high"; write a number',
    ),
    "greedy mapping at a temperature": Broken(
        "verifier: chain", "verifier: {kind: greedy}", 24, "needs temperature 0, not 0.8"
    ),
    "unknown proposer": Broken("kind: ngram", "kind: ngrams", 23, "did you mean ngram?"),
    "unknown model": Broken("model: draft", "model: daft", 18, "did you mean draft?"),
    "draft model without model": Broken("      model: draft\n", "", 16, "needs a draft"),
    "unknown option": Broken("gamma: 3}", "gamma: 3, options: {size: 3}}", 23, "no option"),
    "unknown check": Broken("replay]", "replya]", 21, "did you mean replay?"),
    "check twice": Broken("replay]", "replay, replay]", 21, "twice"),
    "unknown check parameter": Broken("leak_margin", "leek_margin", 13, "did you mean leak_margin?"),
    "check parameter of another type": Broken("0.06", "wide", 13, 'leak_margin is "wide"'),
    "check parameter in an arm": Broken(
        "[greedy_equality, replay]", "{replay: {x: 1}}", 21, "unknown parameter of replay"
    ),
    "unknown fault": Broken("verifier: chain", "verifier: chain\n    fault: gremlin", 25, "unknown fault"),
    "unknown record": Broken("samples: 2", "record: everything", 4, "accepted: auto, full, scalars, tokens, topk"),
    "greedy at a temperature": Broken("verifier: chain", "verifier: greedy", 24, "needs temperature 0, not 0.8"),
    "temperature negative": Broken("0.8", "-0.8", 25, "at least 0"),
    "top_p zero": Broken("0.8", "0.8, top_p: 0", 25, "above 0"),
    "min_p one": Broken("0.8", "0.8, min_p: 1", 25, "below 1"),
    "empty stop": Broken("0.8", "0.8, stop: ['']", 25, "fewer than 1"),
    "bias triple": Broken("0.8", "0.8, logit_bias: [[1, 2, 3]]", 25, "more than 2"),
    "null": Broken("name: trial", "name:", 2, "is null; write text"),
    "huge integer": Broken("seed: 7", "seed: " + "9" * 5000, 3, "cannot be read"),
}


@pytest.mark.parametrize(
    "broken",
    slow_unless(BROKEN.values(), [broken for name, broken in BROKEN.items() if name != "very deep"]),
    ids=BROKEN.keys(),
)
def test_a_malformed_suite_is_one_line(broken: Broken, tmp_path: Path):
    assert broken.old in SUITE
    path = write_suite(tmp_path, SUITE.replace(broken.old, broken.new, 1))
    result = invoke("validate", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert f"{path}:{broken.line}: " in line
    assert broken.says in line
    assert "; " in line


def test_a_row_without_an_id_has_the_number_of_its_line(tmp_path):
    path = write_suite(tmp_path)
    (tmp_path / "tools.jsonl").write_text('{"prompt": "x"}\n\n{"id": "own", "prompt": "y"}\n')
    cases = load_suite(path).cases
    assert [case.id.partition("/")[2] for case in cases if case.prompt] == ["1", "own", "a"]


@dataclass(frozen=True)
class BrokenRow:
    """The content of a prompt file that must be refused."""

    content: str
    line: int
    says: str


ROWS = {
    "empty": BrokenRow("\n\n", 1, "no rows"),
    "not JSON": BrokenRow('{"id": "a", "prompt": "x"}\n{"id": "b",\n', 2, "bad JSON"),
    "not an object": BrokenRow("[1]\n", 1, "write a mapping"),
    "an id that is no text": BrokenRow('{"id": 7, "prompt": "x"}\n', 1, "id"),
    "the number of a line": BrokenRow('{"id": "2", "prompt": "x"}\n{"prompt": "y"}\n', 2, "already on line 1"),
    "duplicate id": BrokenRow('{"id": "a", "prompt": "x"}\n\n{"id": "a", "prompt": "y"}\n', 3, "already on line 1"),
    "neither": BrokenRow('{"id": "a"}\n', 1, "neither messages nor prompt"),
    "both": BrokenRow('{"id": "a", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}', 1, "both"),
    "tools without chat": BrokenRow('{"id": "a", "prompt": "x", "tools": []}', 1, "chat template"),
    "text and tokens": BrokenRow('{"id": "a", "tokens": [1], "prompt": "x"}', 1, "both prompt and tokens"),
    "no tokens": BrokenRow('{"id": "a", "tokens": []}', 1, "tokens"),
    "tokens that are no ids": BrokenRow('{"id": "a", "tokens": [1, -2]}', 1, "at least 0"),
    "no samples": BrokenRow('{"id": "a", "prompt": "x", "samples": []}', 1, "samples"),
    "a sample twice": BrokenRow('{"id": "a", "prompt": "x", "samples": [1, 1]}', 1, "samples"),
    "unknown key": BrokenRow('{"id": "a", "promt": "x"}', 1, "did you mean prompt?"),
    "unknown role": BrokenRow('{"id": "a", "messages": [{"role": "robot"}]}', 1, "accepted: assistant, system"),
    "key twice": BrokenRow('{"id": "a", "id": "b", "prompt": "x"}', 1, "appears twice"),
    "NaN": BrokenRow('{"id": NaN, "prompt": "x"}', 1, "not a JSON number"),
    "overflow": BrokenRow('{"id": 1e999, "prompt": "x"}', 1, "JSON"),
    "lone surrogate": BrokenRow('{"id": "a", "prompt": "\\ud800"}', 1, "surrogate"),
    "deep": BrokenRow('{"id": "a", "prompt": ' + "[" * 100_000, 1, "nested too deep"),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_a_malformed_prompt_file_is_one_line(row: BrokenRow, tmp_path: Path):
    path = write_suite(tmp_path)
    (tmp_path / "tools.jsonl").write_text(row.content)
    result = invoke("validate", str(path))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert f"{tmp_path / 'tools.jsonl'}:{row.line}: " in line
    assert row.says in line


class TestFiles:
    def refused(self, path: Path) -> str:
        result = invoke("validate", str(path))
        assert result.exit_code == 2
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert str(path) in line
        return line

    def test_missing(self, tmp_path):
        assert "no such file" in self.refused(tmp_path / "gone.yaml")

    def test_folder(self, tmp_path):
        assert "folder" in self.refused(tmp_path)

    def test_empty(self, tmp_path):
        path = write_suite(tmp_path, "# nothing\n")
        assert f"{path}:1: the file is empty" in self.refused(path)

    def test_not_utf8(self, tmp_path):
        path = write_suite(tmp_path)
        path.write_bytes(SUITE.encode().replace(b"seed", b"\xff\xfe"))
        assert f"{path}:3: " in self.refused(path)

    def test_prompts_not_utf8(self, tmp_path):
        path = write_suite(tmp_path)
        (tmp_path / "tools.jsonl").write_bytes(b'{"id": "a", "prompt": "x"}\n\xff\n')
        result = invoke("validate", str(path))
        assert result.exit_code == 2
        assert "tools.jsonl:2: " in result.stderr

    def test_larger_than_a_mebibyte(self, tmp_path):
        path = write_suite(tmp_path, SUITE + "#" * 2**20)
        assert "larger than 1 MiB" in self.refused(path)

    def test_a_device(self):
        assert "not a regular file" in self.refused(Path("/dev/zero"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_unreadable(self, tmp_path):
        path = write_suite(tmp_path)
        path.chmod(0)
        assert "permissions" in self.refused(path)

    def test_only_the_first_mistake_is_told(self, tmp_path):
        text = SUITE.replace("gamma: 4", "gamma: 0").replace("seed: 7", "sed: 7")
        assert ":3: " in self.refused(write_suite(tmp_path, text))


class TestValidate:
    def test_says_what_would_run(self, tmp_path):
        result = invoke("validate", str(write_suite(tmp_path)))
        assert result.exit_code == 0
        assert "batches of 8, mixed" in result.stdout
        assert all(": warning: " in line for line in result.stderr.splitlines())
        assert "greedy: draft_model gamma 4, greedy, temperature 0; 3 requests, at most 48 tokens" in result.stdout
        assert "sampled: ngram gamma 3, chain, temperature 0.8; 6 requests, at most 96 tokens" in result.stdout
        assert "2 arms, 3 cases, at most 144 tokens" in result.stdout

    def test_says_which_rule_is_lossy_and_with_what(self, tmp_path):
        text = SUITE.replace("verifier: chain", "verifier: {kind: typical, epsilon: 0.1}")
        result = invoke("validate", str(write_suite(tmp_path, text)))
        assert "sampled: ngram gamma 3, typical epsilon 0.1 delta 0.3 (lossy), temperature 0.8" in result.stdout


class TestParsing:
    def test_lines_of_values_in_lists_and_mappings(self):
        document = parse_yaml("x", b"a:\n  - 1\n  - b: 2\n    c: 3\n")
        assert [document.line(place) for place in ((), ("a",), ("a", 1), ("a", 1, "c"), ("a", 1, "z"))] == [
            1,
            1,
            3,
            4,
            3,
        ]

    def test_a_date_stays_text(self):
        assert parse_yaml("x", b"a: 2024-01-01").data == {"a": "2024-01-01"}

    def test_yaml_12_words_are_text(self):
        assert parse_yaml("x", b"[yes, no, on, off]").data == ["yes", "no", "on", "off"]

    def test_json_numbers_keep_their_kind(self):
        assert [type(value) for value in parse_json("[1, 1.0, true, null]")] == [int, float, bool, type(None)]

    def test_a_message_is_one_line_whatever_the_value(self):
        with pytest.raises(UserError) as caught:
            raise parse_yaml("x", b"a: 1").error(("a",), "two\nlines")
        assert str(caught.value) == "x:1: two lines"


class TestSharedNumbers:
    @pytest.mark.parametrize(
        ("before", "after", "line"),
        [
            ("max_new_tokens: 16", "max_new_tokens: 16, seed: 3", 11),
            ("temperature: 0.8", "temperature: 0.8, seed: 3", 25),
        ],
        ids=["the suite's sampling", "an arm's sampling"],
    )
    def test_a_seed_among_sampling_parameters_is_refused(self, tmp_path, before, after, line):
        path = write_suite(tmp_path, SUITE.replace(before, after))
        with pytest.raises(UserError, match=rf"suite\.yaml:{line}: requests with one seed and stream share") as refused:
            load_suite(path)
        assert "\n" not in str(refused.value)

    def test_requests_of_one_stream_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr("audit.suite.prompts.stream_of", lambda name: len(name))
        with pytest.raises(UserError, match=r"tools/a#0 and tools/a#1 would share seed 7 and stream 9; give one"):
            load_suite(write_suite(tmp_path))

    def test_every_request_of_a_valid_suite_has_a_stream_of_its_own(self, suite):
        from audit.runs.arms import plan_arms, slots

        for arm in plan_arms(suite):
            streams = [slot.stream for slot in slots(suite, arm)]
            assert len(set(streams)) == len(streams)
