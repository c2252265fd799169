"""Attacks on a store: each edit, deletion and insertion leaves the decision at "cannot decide", with the place."""

from __future__ import annotations

import copy

import pytest

from audit.store import NewCheck, Store
from tests.audit.gate.attacks.honest import SUITE, asked, copied, edited, ran

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("honest"), SUITE)


def test_the_honest_run_is_allowed(honest, tmp_path):
    answer = asked(tmp_path, "latest", store=copied(honest, tmp_path))
    assert answer.code == 0, answer.output
    assert all(reason.startswith("coverage: arm ") for reason in answer.reasons), "its suite asks for no situation"
    assert len(answer.reasons) == 2


EDITED = "was edited after it was logged"
DELETED = "was deleted after it was logged"
UNLOGGED = "no entry of the log covers it"
FIRST = "(SELECT min(id) FROM check_result)"
RESULT = (
    "run_id, arm_id, name, claim, verdict, level, n, statistic, p_value, effect, bound, margin, summary, n_findings, "
    "findings_commitment, details, created_at, judgement_id"
)
ARM = "(SELECT id FROM arm WHERE name = 'sampled')"
EDITS = {
    "verdict rewritten": (("UPDATE check_result SET verdict = 'certified', summary = 'fine'",), EDITED),
    "bound rewritten": ((f"UPDATE check_result SET bound = 0 WHERE id = {FIRST}",), EDITED),
    "verdict rows deleted": (("DELETE FROM coverage", "DELETE FROM check_result"), DELETED),
    "verdict superseded": (
        (f"INSERT INTO check_result ({RESULT}) SELECT {RESULT} FROM check_result WHERE id = {FIRST}",),
        UNLOGGED,
    ),
    "verdict replaced": (
        (
            f"INSERT OR REPLACE INTO check_result (id, {RESULT}) "
            f"SELECT id, {RESULT.replace('summary', chr(39) + 'x' + chr(39))} FROM check_result WHERE id = {FIRST}",
        ),
        EDITED,
    ),
    "judgement forged": (
        (
            "INSERT INTO judgement (run_id, environment_id, actor, created_at) "
            "SELECT id, environment_id, 'ci', started_at FROM run",
        ),
        UNLOGGED,
    ),
    "decision forged": (
        (
            "INSERT INTO gate_decision (run_id, policy_sha256, policy, decision, reasons, actor, created_at) "
            "SELECT id, 'a', '{}', 'allow', '[]', 'ci', started_at FROM run",
        ),
        UNLOGGED,
    ),
    "arm deleted": ((f"DELETE FROM request WHERE arm_id = {ARM}", "DELETE FROM arm WHERE name = 'sampled'"), DELETED),
    "request deleted": (("DELETE FROM request WHERE id = (SELECT max(id) FROM request)",), DELETED),
    "label of a fault edited": (('UPDATE arm SET spec = replace(spec, \'"fault": null\', \'"fault": ""\')',), EDITED),
    "arm called lossy": (("UPDATE arm SET lossless = 0",), EDITED),
    "arm called a baseline": ((f"UPDATE arm SET kind = 'baseline' WHERE id = {ARM}",), EDITED),
    "arm renamed": ((f"UPDATE arm SET name = 'sampIed' WHERE id = {ARM}",), EDITED),
    "parameters edited": (("UPDATE arm SET spec = replace(spec, '0.3', '0.1')",), EDITED),
    "floors edited": (("UPDATE coverage SET examined = 1000",), EDITED),
    "level raised": (("UPDATE arm SET level = 'L0'",), EDITED),
    "target exchanged": (
        ("UPDATE artifact SET sha256 = substr(sha256, 2) || substr(sha256, 1, 1) WHERE kind = 'target'",),
        EDITED,
    ),
    "suite exchanged": (
        ("UPDATE artifact SET sha256 = substr(sha256, 2) || substr(sha256, 1, 1) WHERE kind = 'suite'",),
        EDITED,
    ),
    "suite's content exchanged": (("UPDATE artifact SET manifest = '{}' WHERE kind = 'suite'",), EDITED),
    "artifact's role exchanged": (("UPDATE run_artifact SET name = 'other' WHERE role = 'target'",), DELETED),
    "environment edited": (("UPDATE environment SET code = '{}'",), EDITED),
    "actor edited": (("UPDATE run SET actor = 'someone'",), EDITED),
    "start edited": (("UPDATE run SET started_at = '2099-01-01 00:00:00.000000'",), EDITED),
    "end edited": (("UPDATE run SET finished_at = '2099-01-01 00:00:00.000000'",), "its state was edited"),
    "status edited": (("UPDATE run SET exit_code = 0, tokens = 1000000",), "its state was edited"),
    "root edited": (
        ("UPDATE run SET record_root = substr(record_root, 2) || substr(record_root, 1, 1)",),
        "its state was edited",
    ),
    "event deleted": (("DELETE FROM run_event",), DELETED),
    "text edited": (("UPDATE content SET text = 'nothing'",), "commitment contradicts"),
    "prompt edited": (("UPDATE content SET prompt_ids = '[1]'",), "its prompt was changed"),
    "trace edited": (("UPDATE token_trace SET payload = zeroblob(64)",), "its trace was changed"),
    "trace deleted": (("DELETE FROM token_trace",), "token_trace"),
    "trace of another request": (
        ("UPDATE token_trace SET payload = (SELECT payload FROM token_trace ORDER BY request_id LIMIT 1)",),
        "its trace was changed",
    ),
    "counts edited": (("UPDATE request SET n_drafted = 1000, n_accepted = 1000",), "row, steps or trace digest"),
    "steps edited": (("UPDATE request_steps SET steps = '[]'",), "row, steps or trace digest"),
    "record hashes edited": (
        ("UPDATE request SET record_hash = substr(record_hash, 2) || substr(record_hash, 1, 1)",),
        EDITED,
    ),
    "settings edited": (("UPDATE arm_speculation SET gamma = 99",), "speculation settings"),
    "log cut": (("DELETE FROM log_entry WHERE seq > 3",), UNLOGGED),
    "log entry removed": (("DELETE FROM log_entry WHERE seq = 3",), "the entry was deleted"),
    "log entry exchanged": (("UPDATE log_entry SET leaf = zeroblob(32) WHERE seq = 3",), "does not fit the tree"),
    "log emptied": (("DELETE FROM log_entry",), UNLOGGED),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_not_allowed_and_named(name, honest, tmp_path):
    store = copied(honest, tmp_path)
    statements, says = EDITS[name]
    edited(store, *statements)
    answer = asked(tmp_path, "latest", store=store)
    # an edit that makes an arm lossy blocks besides
    assert answer.code == (1 if name == "arm called lossy" else 3), answer.output
    # the place that a reader sees first may be another of the same edit, so the whole check is asked
    assert any(reason.startswith("record: not what it was") for reason in answer.reasons), answer.output
    with Store.open(str(store), create=False, read_only=True) as opened:
        assert any(says in f"{each.place} {each.message}" for each in opened.damage()), [*opened.damage()]


GUARDS = {
    "dropped": ("DROP TRIGGER guard_arm_update",),
    "hollow": (
        "DROP TRIGGER guard_arm_update",
        "CREATE TRIGGER guard_arm_update BEFORE UPDATE ON arm BEGIN SELECT 1; END",
    ),
    "added": ("CREATE TRIGGER more AFTER INSERT ON gate_decision BEGIN SELECT 1; END",),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_changed_trigger_is_named(name, honest, tmp_path):
    store = copied(honest, tmp_path)
    edited(store, *GUARDS[name], guards=True)
    answer = asked(tmp_path, "latest", store=store)
    assert answer.code == 3
    assert "trigger" in answer.reasons[0]


def test_a_superseding_verdict_that_is_logged_changes_nothing(honest, tmp_path):
    """Whoever may write through the store's own code can write a verdict; the gate computes its own."""
    broken = copy.deepcopy(SUITE)
    broken["arms"][1]["fault"] = "accepts_everything"
    (tmp_path / "broken").mkdir()
    store = ran(tmp_path / "broken", broken)
    with Store.open(str(store), create=False) as opened:
        run = opened.resolve("latest")
        from audit.evidence.records import Level
        from audit.evidence.verdicts import CheckResult, Verdict

        for name, claim in (("replay", "replay"), ("acceptance_theory", "acceptance")):
            fine = CheckResult(Verdict.CERTIFIED, "fine", n=9)
            opened.add_check(run, NewCheck("sampled", name, claim, Level.L4, fine))
        assert opened.checks(run)[-1].verdict is Verdict.CERTIFIED
    trusting = asked(tmp_path, "latest", "--trust-verdicts", store=store)
    assert not any("replay is fault" in reason for reason in trusting.reasons)
    answer = asked(tmp_path, "latest", store=store)
    assert answer.code == 1
    assert any("known_bad" in reason for reason in answer.reasons)
    assert any("the stored result differs: verdict certified -> fault" in reason for reason in answer.reasons)
