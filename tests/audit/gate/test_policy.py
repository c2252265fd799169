from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from audit.errors import UserError
from audit.evidence.records import Level
from audit.gate.policy import Scope, load_policy
from audit.gate.subjects import parse_subject
from audit.text.durations import parse_duration
from engine.models.files.folder import model_digest, open_folder, tokenizer_digest
from tests.support.model_folders import model_folder

POLICY = """\
version: 1
name: trial
require:
  - {claim: law, checks: [law], scope: some_arm, arms: {temperature: above_zero}}
evidence:
  min_tokens: 10
  max_age: P1DT12H
subjects:
  digests: {draft: "sha256:%s"}
coverage: {kept_whole: 10}
""" % ("a" * 64)


def test_values(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    policy = load_policy(path)
    assert policy.max_age == timedelta(hours=36)
    assert policy.digests == {"draft": "a" * 64}
    assert policy.min_level is Level.L0
    assert not policy.require_lossless
    assert policy.require[0].scope is Scope.SOME_ARM
    assert policy.require[0].arms.greedy is False
    assert (policy.named, policy.named_if_used, policy.coverage) == ((), (), {"kept_whole": 10})
    assert policy.sha256 == hashlib.sha256(POLICY.encode()).hexdigest()


@pytest.mark.parametrize("name", ["standard", "standard.yaml", "suites/policies/standard.yaml"])
def test_packaged_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_policy(name).name == "standard"
    assert load_policy(name).require_lossless


def test_a_file_in_the_working_folder_does_not_replace_a_packaged_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("standard", "trial"):
        (tmp_path / name).write_text(POLICY)
    assert load_policy("standard").name == "standard"
    assert load_policy("./standard").name == "trial"
    with pytest.raises(UserError, match=r'"trial": no packaged policy of that name; .* as in ./trial'):
        load_policy("trial")


@pytest.mark.parametrize(
    ("text", "hours"),
    [("30d", 720), ("12h", 12), ("90m", 1.5), ("2w", 336), ("P30D", 720), ("PT90M", 1.5), ("P1W", 168), ("P1DT1H", 25)],
)
def test_durations(text, hours):
    assert parse_duration(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "30", "d", "P", "PT", "P1DT", "1y", "P1M", "-1d", "1.5d", "30 d", "P1H"])
def test_what_is_no_duration(text):
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("claim: law", "clam: law", 4, "did you mean claim?"),
        ("[law]", "[lwa]", 4, "did you mean law?"),
        ("[law]", "[]", 4, "fewer than 1"),
        ("some_arm", "any_arm", 4, "accepted: each_arm, some_arm"),
        ("P1DT12H", "soon", 7, "30d"),
        ("P1DT12H", "0d", 7, "30d"),
        ("min_tokens: 10", "min_tokens: 0", 6, "at least 1"),
        ("  min_tokens: 10\n", "", 5, "lacks the key min_tokens"),
        ("sha256:a", "sha256:A", 9, "matches"),
        ("version: 1", "version: 2", 1, "write 1"),
        ("subjects:", "require_lossless: maybe\nsubjects:", 8, "write true or false"),
        ("kept_whole: 10", "kept_whole: 0", 10, "at least 1"),
        ("{kept_whole: 10}", "[kept_whole]", 10, "coverage"),
    ],
)
def test_a_malformed_policy_is_one_line(old, new, line, says, tmp_path):
    assert old in POLICY
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_policy(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert says in message
    assert "\n" not in message


def test_a_subject_is_a_digest_or_a_folder(tmp_path):
    folder = model_folder(tmp_path / "draft")
    files = open_folder(folder, "draft").files
    assert parse_subject(f"target=sha256:{'a' * 64}").sha256 == "a" * 64
    assert parse_subject(f"draft={folder}").sha256 == model_digest(files)
    assert parse_subject(f"tokenizer={folder}").sha256 == tokenizer_digest(files)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_one_byte_changes_a_folders_digest(file, tmp_path):
    folder = model_folder(tmp_path / "draft")
    before = parse_subject(f"draft={folder}").sha256
    (folder / file).write_bytes((folder / file).read_bytes() + b" ")
    assert parse_subject(f"draft={folder}").sha256 != before


@pytest.mark.parametrize(
    "text", ["draft", "=x", "draft=", "draft=sha256:abc", f"draft=sha256:{'A' * 64}", "draft=/none"]
)
def test_what_is_no_subject(text):
    with pytest.raises(UserError) as caught:
        parse_subject(text)
    assert "--subject" in str(caught.value)
    assert "\n" not in str(caught.value)
