from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import schemas
from audit.attach.interface import load_format
from audit.attach.statement import digest
from audit.attach.subject import same_model
from audit.errors import UserError
from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.store import NewCheck, RunStatus, Store
from audit.text.staged_files import staged
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke
from tests.audit.store.build import start

LM_EVAL = """\
{
  "results": {
    "arc": {
      "acc,none": 0.30,
      "acc_stderr,none": NaN,
      "loss": 1.0e-05
    }
  },
  "n-shot": {"arc": 0},
  "config": {
    "model": "hf",
    "seed": 1234
  },
  "git_hash": "abc"
}
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return stored_run(tmp_path)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    path.write_text(LM_EVAL)
    return path


def attach(url: str, report: Path, *more: str):
    return invoke("attach", "latest", str(report), "--store", url, *more)


def verify(url: str, report: Path, *more: str):
    return invoke("verify", str(report), "--store", url, *more)


def attached(url: str, report: Path) -> Path:
    result = attach(url, report)
    assert (result.exit_code, result.stderr) == (0, "")
    return report.with_name("results.audited.json")


class TestAttach:
    @pytest.mark.medium
    def test_the_report_carries_the_evidence_and_keeps_everything_else(self, url, report):
        out = attached(url, report)
        assert report.read_text() == LM_EVAL
        text = out.read_text()
        block = json.loads(text)["config"]["audit"]
        assert block["claims"] == {"acceptance": {"certified": 1}, "law": {"certified": 1}, "replay": {"certified": 1}}
        assert block["report"] == {"name": "results.json", "format": "lm_eval", "sha256": digest(LM_EVAL.encode())}
        assert [each["role"] for each in block["subjects"]] == ["draft", "target", "tokenizer"]
        assert "lossy" not in block
        lines = iter(text.splitlines())
        kept = [line.rstrip(",") for line in LM_EVAL.splitlines()]
        assert all(any(line.rstrip(",") == wanted for line in lines) for wanted in kept)

    @pytest.mark.medium
    def test_the_statement_binds_the_digests_before_and_after(self, url, report):
        out = attached(url, report)
        statement = json.loads(out.with_name("results.audited.json.intoto.json").read_text())
        Draft202012Validator(schemas.load("attachment")).validate(statement)
        with Store.open(url, create=False) as store:
            run = store.load_run(store.resolve("latest"))
        assert statement["_type"] == "https://in-toto.io/Statement/v1"
        assert [(each["name"], each["digest"]["sha256"]) for each in statement["subject"]] == [
            ("results.audited.json", digest(out.read_bytes())),
            ("results.audited.json#before", digest(LM_EVAL.encode())),
            (f"run:{run.ulid}", run.record_root),
        ]
        assert statement["predicate"] == json.loads(out.read_text())["config"]["audit"]

    @pytest.mark.medium
    def test_the_store_knows_it(self, url, report):
        out = attached(url, report)
        with Store.open(url, create=False) as store:
            (row,) = store.attachments(store.resolve("latest"))
        assert (row.format, row.location) == ("lm_eval", str(out))
        assert (row.report_before, row.report_after) == (digest(LM_EVAL.encode()), digest(out.read_bytes()))

    @pytest.mark.medium
    def test_in_place_keeps_the_mode(self, url, report):
        report.chmod(0o640)
        assert attach(url, report, "--in-place").exit_code == 0
        assert "audit" in json.loads(report.read_text())["config"]
        assert stat.S_IMODE(report.stat().st_mode) == 0o640
        assert verify(url, report).exit_code == 0

    @pytest.mark.medium
    def test_any_json_object_will_do(self, url, tmp_path):
        path = tmp_path / "plain.json"
        path.write_text('{"score": 1}')
        assert attach(url, path, "--out", str(tmp_path / "out.json")).exit_code == 0
        assert json.loads((tmp_path / "out.json").read_text())["audit"]["report"]["format"] == "json"
        assert verify(url, tmp_path / "out.json").exit_code == 0

    @pytest.mark.medium
    def test_attached_evidence_is_replaced_only_on_request(self, url, report):
        assert attach(url, report, "--in-place").exit_code == 0
        once = report.read_bytes()
        refused = attach(url, report, "--in-place", "--statement", str(report.with_name("other.json")))
        assert refused.exit_code == 2
        assert "--replace" in refused.stderr
        assert report.read_bytes() == once
        assert attach(url, report, "--in-place", "--replace").exit_code == 0
        assert report.read_bytes() == once
        assert verify(url, report).exit_code == 0

    @pytest.mark.medium
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "cannot carry"),
            (b"[1, 2]", "not a JSON object"),
            (b'{"a": ', "cannot carry"),
            (b"\xff\xfe", "not UTF-8"),
            (b"[" * 100_000, "nested too deep"),
        ],
    )
    def test_a_report_that_cannot_carry_it_is_told(self, url, report, content, says):
        report.write_bytes(content)
        before = sorted(report.parent.iterdir())
        result = attach(url, report)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert f"{report}: " in line
        assert says in line
        assert sorted(report.parent.iterdir()) == before

    @pytest.mark.medium
    @pytest.mark.parametrize(
        "more",
        [
            ("--in-place", "--out", "x.json"),
            ("--out", "results.json"),
            ("--statement", "results.json"),
            ("--format", "xml"),
            ("--out", "nowhere/x.json"),
        ],
    )
    def test_invalid_input_writes_nothing(self, url, report, more, monkeypatch):
        monkeypatch.chdir(report.parent)
        before = sorted(report.parent.iterdir())
        assert attach(url, report, *more).exit_code == 2
        assert sorted(report.parent.iterdir()) == before
        with Store.open(url, create=False) as store:
            assert store.attachments(store.resolve("latest")) == ()

    @pytest.mark.medium
    def test_a_format_that_does_not_fit_is_refused(self, url, report):
        report.write_text('{"score": 1}')
        assert attach(url, report, "--format", "lm_eval").exit_code == 2

    @pytest.mark.medium
    def test_an_existing_file_is_not_overwritten(self, url, report):
        out = report.with_name("results.audited.json")
        out.write_text("mine")
        assert attach(url, report).exit_code == 2
        assert out.read_text() == "mine"

    @pytest.mark.medium
    def test_an_unfinished_run_cannot_be_attached(self, url, report):
        with Store.open(url, create=False) as store:
            store.begin_run(start())
        assert attach(url, report).exit_code == 3

    @pytest.mark.medium
    def test_a_changed_record_cannot_be_attached(self, url, report):
        tamper(url)
        assert attach(url, report).exit_code == 3


def tamper(url: str) -> None:
    database = sqlite3.connect(url.removeprefix("sqlite:///"))
    with database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f'drop trigger "{name}"')
        database.execute("update content set text = 'edited'")
    database.close()


def statement_of(report: Path) -> Path:
    return report.with_name(f"{report.name}.intoto.json")


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def named(report: Path, model: str) -> Path:
    """The report with the model's name in the harness's arguments."""
    report.write_text(LM_EVAL.replace('"hf",', f'"hf",\n    "model_args": "pretrained={model},dtype=float32",'))
    return report


class TestVerdicts:
    @pytest.mark.medium
    def test_attach_and_verify_say_the_verdicts_and_what_the_report_is_about(self, url, report):
        result = attach(url, report)
        said = result.stdout.splitlines()[3:]
        assert said == [
            "verdict    PASS: every check that applies is certified",
            "claim      acceptance: 1 certified",
            "claim      law: 1 certified",
            "claim      replay: 1 certified",
            "model      the report names no model; the run's is big",
            "answers    not known to be generated by this run",
        ]
        verified = verify(url, report.with_name("results.audited.json"))
        assert verified.stdout.splitlines()[1:] == said

    @pytest.mark.medium
    def test_a_run_with_faults_is_refused_unless_failed_is_said(self, tmp_path, report):
        url = stored_run(tmp_path, {"law": Verdict.FAULT, "replay": Verdict.CERTIFIED}, exit_code=1)
        before = sorted(tmp_path.iterdir())
        refused = attach(url, report)
        assert (refused.exit_code, refused.stdout) == (2, "")
        (line,) = refused.stderr.splitlines()
        assert "failed (law of arm spec); add --failed" in line
        assert sorted(tmp_path.iterdir()) == before
        told = attach(url, report, "--failed")
        assert told.exit_code == 0
        assert "verdict    FAIL: at least one claim is broken" in told.stdout
        assert "fault      law of arm spec" in told.stdout
        verified = verify(url, report.with_name("results.audited.json"))
        assert verified.exit_code == 0
        assert "verdict    FAIL: at least one claim is broken" in verified.stdout

    @pytest.mark.medium
    def test_a_failed_exit_code_is_enough(self, tmp_path, report):
        url = stored_run(tmp_path, exit_code=1)
        result = attach(url, report)
        assert result.exit_code == 2
        assert "failed (exit code 1)" in result.stderr


class TestModel:
    @pytest.mark.medium
    @pytest.mark.parametrize("name", ["org/other", "bigger"])
    def test_a_report_about_another_model_is_refused_unless_stated(self, url, report, name):
        before = sorted(report.parent.iterdir())
        refused = attach(url, named(report, name))
        assert (refused.exit_code, refused.stdout) == (2, "")
        (line,) = refused.stderr.splitlines()
        assert f"{report}: the report names the model {name}, the run's target is big" in line
        assert "--model-differs" in line
        assert sorted(report.parent.iterdir()) == before
        told = attach(url, report, "--model-differs", "a copy of big in four bits")
        assert told.exit_code == 0
        said = f"DIFFERS: the report names {name}, the run's is big; stated reason: a copy of big in four bits"
        assert said in told.stdout
        verified = verify(url, report.with_name("results.audited.json"))
        assert verified.exit_code == 0
        assert said in verified.stdout

    @pytest.mark.medium
    def test_a_report_about_the_run_s_model_is_attached_and_the_statement_says_so(self, url, report):
        out = attached(url, named(report, "org/big"))
        predicate = json.loads(out.read_text())["config"]["audit"]
        assert predicate["model"] == {"report": ["org/big"], "run": ["big"], "agree": True, "differs": None}
        assert predicate["generated_by_run"] is False

    @pytest.mark.medium
    def test_a_reason_without_a_difference_is_refused(self, url, report):
        assert attach(url, named(report, "big"), "--model-differs", "none").exit_code == 2

    @pytest.mark.medium
    def test_the_run_s_own_results_are_generated_by_the_run(self, url, report):
        report.write_text(invoke("show", "--json", "--store", url).stdout)
        assert json.loads(attached(url, report).read_text())["audit"]["generated_by_run"] is True

    @pytest.mark.parametrize(
        ("left", "right", "same"),
        [
            ("hf:org/llama@main", "org/Llama", True),
            ("org/llama", "served:llama", True),
            ("/models/llama/", "hf:org/llama", True),
            ("openai/org/llama", "served:org/llama", True),
            ("org/llama", "other/llama", False),
            ("llama-8b", "llama-70b", False),
            ("", "llama", False),
        ],
    )
    def test_names_agree_by_their_ends(self, left, right, same):
        assert same_model(left, right) is same

    @pytest.mark.parametrize(
        ("document", "names"),
        [
            ({"eval": {"model": "openai/llama"}}, ("openai/llama",)),
            ({"model": "llama", "model_name": "llama"}, ("llama",)),
            ({"score": 1, "model": {"name": "llama"}}, ()),
        ],
    )
    def test_any_json_report_may_name_its_model(self, document, names):
        assert load_format("json").models_of(json.dumps(document).encode()) == names

    def test_what_is_added_to_a_model_is_named_too(self):
        config = {"model_args": {"pretrained": "big", "peft": "adapter"}}
        report = {"results": {}, "config": config, "model_name": "big"}
        assert load_format("lm_eval").models_of(json.dumps(report).encode()) == ("big", "adapter")
        config["model_args"] = ""
        assert load_format("lm_eval").models_of(json.dumps(report).encode()) == ("big",)


class TestVerify:
    @pytest.mark.medium
    def test_untouched_is_verified(self, url, report):
        result = verify(url, attached(url, report))
        assert result.exit_code == 0
        assert result.stdout.startswith("verified: ")

    @pytest.mark.medium
    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("0.30", "0.31", "without its evidence"),
            ("0.30", "0.3", "without its evidence"),
            ('"certified"', '"fault"', "evidence in the report"),
            ('"audit"', '"audti"', "evidence in the report"),
            ("{", "[", "no lm_eval report any more"),
        ],
    )
    def test_an_edited_report_fails(self, url, report, old, new, says):
        out = attached(url, report)
        assert old in out.read_text()
        out.write_text(out.read_text().replace(old, new, 1))
        result = verify(url, out)
        assert result.exit_code == 1
        assert "mismatch: the report is sha256:" in result.stdout
        assert says in result.stdout

    @pytest.mark.medium
    @pytest.mark.parametrize("place", [1, 2])
    def test_another_name_of_the_second_or_third_subject_fails(self, url, report, place):
        out = attached(url, report)
        path = out.with_name(f"{out.name}.intoto.json")
        statement = json.loads(path.read_text())
        name = statement["subject"][place]["name"]
        statement["subject"][place]["name"] = "other"
        path.write_text(json.dumps(statement))
        result = verify(url, out)
        assert result.exit_code == 1
        assert f"mismatch: the statement's subject other should be {name}" in result.stdout

    @pytest.mark.medium
    def test_report_and_statement_edited_together_fail_against_the_store(self, url, report):
        out = attached(url, report)
        out.write_text(out.read_text().replace("0.30", "0.99"))

        def rebind(statement):
            statement["subject"][0]["digest"]["sha256"] = digest(out.read_bytes())
            before = digest(LM_EVAL.replace("0.30", "0.99").encode())
            statement["subject"][1]["digest"]["sha256"] = before

        edit(statement_of(out), rebind)
        result = verify(url, out)
        assert result.exit_code == 1
        assert "the store has no such attachment" in result.stdout

    @pytest.mark.medium
    @pytest.mark.parametrize(("index", "says"), [(0, "binds"), (1, "report before"), (2, "record root")])
    def test_an_edited_statement_fails(self, url, report, index, says):
        out = attached(url, report)
        edit(statement_of(out), lambda document: document["subject"][index]["digest"].update(sha256="0" * 64))
        result = verify(url, out)
        assert result.exit_code == 1
        assert says in result.stdout

    @pytest.mark.medium
    def test_verdicts_that_changed_since_fail(self, url, report):
        out = attached(url, report)
        with Store.open(url, create=False) as store:
            run = store.resolve("latest")
            store.add_check(run, NewCheck("spec", "law", "law", Level.L4, CheckResult(Verdict.FAULT, "found later")))
        result = verify(url, out)
        assert result.exit_code == 1
        assert "claims, checks of run" in result.stdout

    @pytest.mark.medium
    def test_a_changed_record_fails(self, url, report):
        out = attached(url, report)
        tamper(url)
        result = verify(url, out)
        assert result.exit_code == 1
        assert "not what it was" in result.stdout

    @pytest.mark.medium
    def test_a_missing_statement_cannot_be_decided(self, url, report):
        out = attached(url, report)
        statement_of(out).unlink()
        assert verify(url, out).exit_code == 3

    @pytest.mark.medium
    def test_a_missing_run_cannot_be_decided(self, url, report, tmp_path):
        out = attached(url, report)
        (tmp_path / "other").mkdir()
        other = stored_run(tmp_path / "other")
        result = verify(other, out)
        assert result.exit_code == 3
        assert "not confirmed: " in result.stdout

    @pytest.mark.medium
    def test_a_missing_store_cannot_be_decided_but_a_mismatch_still_fails(self, url, report, tmp_path):
        out = attached(url, report)
        none = f"sqlite:///{tmp_path / 'none.db'}"
        assert verify(none, out).exit_code == 3
        out.write_text(out.read_text() + " ")
        assert verify(none, out).exit_code == 1
        assert not (tmp_path / "none.db").exists()

    @pytest.mark.medium
    @pytest.mark.parametrize("content", ["", "{}", "[]", '{"_type": "x"}', "[" * 100_000])
    def test_what_is_no_statement_is_invalid_input(self, url, report, content):
        out = attached(url, report)
        statement_of(out).write_text(content)
        result = verify(url, out)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert str(statement_of(out)) in line

    @pytest.mark.medium
    def test_a_missing_report_is_invalid_input(self, url, tmp_path):
        assert verify(url, tmp_path / "none.json").exit_code == 2


class TestStaging:
    def test_a_failure_in_the_body_changes_nothing(self, tmp_path):
        path = tmp_path / "a"
        path.write_text("old")
        with pytest.raises(RuntimeError, match="stop"), staged({path: b"new", tmp_path / "b": b"new"}):
            raise RuntimeError("stop")
        assert [each.name for each in tmp_path.iterdir()] == ["a"]
        assert path.read_text() == "old"

    def test_a_place_that_cannot_be_written_leaves_nothing_behind(self, tmp_path):
        with pytest.raises(UserError), staged({tmp_path / "a": b"new", tmp_path / "none" / "b": b"new"}):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_a_link_is_followed(self, tmp_path):
        (tmp_path / "file").write_text("old")
        (tmp_path / "link").symlink_to(tmp_path / "file")
        with staged({tmp_path / "link": b"new"}):
            pass
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == "new"


@pytest.mark.medium
def test_status_names_are_told(url, report):
    with Store.open(url, create=False) as store:
        run = store.begin_run(start())
        store.finish_run(run, RunStatus.FAILED, 2)
    result = attach(url, report)
    assert result.exit_code == 3
    assert "failed, not finished" in result.stderr


def test_a_folder_is_no_report():
    done = invoke("attach", "latest", ".")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "name a file" in done.stderr
