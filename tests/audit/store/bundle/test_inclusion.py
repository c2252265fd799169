"""Bundles with a checkpoint: what the log covers is proven without the store, and every difference is named."""

from __future__ import annotations

import json

import pytest

from audit.store import NewCheck, Store
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill_finished, made_store
from tests.audit.store.bundle.build import edited, exported, parts_of, restated, zipped
from tests.audit.store.conftest import any_url, cluster, postgres

__all__ = ["any_url", "cluster", "postgres"]


def signed(url, folder):
    """The public key of a checkpoint of the store."""
    key = folder / "audit.key"
    if not key.exists():
        assert invoke("keys", "init", str(key), "--name", "example.org/audit").exit_code == 0
    made = invoke("db", "checkpoint", "--key", str(key), "--out", str(folder / "log.note"), "--store", url)
    assert made.exit_code == 0, made.stderr
    return f"{key}.pub"


@pytest.fixture
def url(tmp_path):
    return made_store(tmp_path)


@pytest.mark.medium
def test_rows_of_the_bundle_are_proven_to_be_in_the_signed_log(any_url, tmp_path):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)  # keys of the run differ from those of its bundle
        fill_finished(store)
    key = signed(any_url, tmp_path)
    bundle = exported(any_url, tmp_path / "run.zip")
    shown = invoke("verify", str(bundle), "--key", key)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "2 check_result are in a log of" in shown.stdout
    assert "the key example.org/audit signed this log" in shown.stdout
    assert "2 verdicts, which the record root does not cover" not in shown.stdout
    assert "verify it with the public key, --key" in invoke("verify", str(bundle)).stdout
    with Store.open(any_url, create=False) as store:
        store.add_check(store.resolve("latest"), NewCheck("spec", "late", "late", *_late()))
    later = invoke("verify", str(exported(any_url, tmp_path / "later.zip")), "--key", key)
    assert "not proved  1 check_result, which the log got after the checkpoint" in later.stdout
    target = str(tmp_path / "target.db")
    assert invoke("import", str(bundle), "--store", target).exit_code == 0
    assert invoke("db", "check", "--store", target).exit_code == 0


def _late():
    from tests.audit.store.build import RESULT, start

    return start().arms[0].level, RESULT


@pytest.mark.medium
def test_without_a_checkpoint_nothing_is_claimed(url, tmp_path):
    bundle = exported(url, tmp_path / "run.zip")
    assert "log.jsonl" not in parts_of(bundle)
    assert "not proved  that the run is in a log" in invoke("verify", str(bundle)).stdout
    key = signed(url, tmp_path)
    refused = invoke("verify", str(bundle), "--key", key)
    assert (refused.exit_code, refused.stderr.count("\n")) == (3, 1)


@pytest.mark.medium
def test_another_key_and_edited_rows_are_named(url, tmp_path):
    key = signed(url, tmp_path)
    bundle = exported(url, tmp_path / "run.zip")
    other = tmp_path / "other"
    other.mkdir()
    assert invoke("keys", "init", str(other / "k"), "--name", "example.org/audit").exit_code == 0
    refused = invoke("verify", str(bundle), "--key", str(other / "k.pub"))
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "not signed by the key" in refused.stderr
    forged = edited(bundle, "check_result", lambda rows: rows[1].update(verdict="certified"))
    result = invoke("verify", str(forged), "--key", key)
    assert result.exit_code == 1
    assert result.stdout.startswith("mismatch: log: check_result: the checkpoint covers another row")
    assert invoke("import", str(forged), "--store", str(tmp_path / "t.db")).exit_code == 2
    swapped = edited(bundle, "check_result", lambda rows: rows[1].update(arm_id=1))
    assert invoke("verify", str(swapped)).exit_code == 1


BREAKS = {
    "a byte of an entry": lambda proof: proof["entries"][0].update(data=proof["entries"][0]["data"][:-1] + " ]"),
    "another place": lambda proof: proof["entries"][1].update(seq=0),
    "another run": lambda proof: proof.update(run="0" * 26),
    "no state": lambda proof: proof["entries"].pop(1),
    "no entries": lambda proof: proof.update(entries=None),
    "no note": lambda proof: proof.update(checkpoint=7),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_proof_is_refused_in_one_line(url, tmp_path, name):
    signed(url, tmp_path)
    parts = parts_of(exported(url, tmp_path / "run.zip"))
    proof = json.loads(parts["log.jsonl"])
    BREAKS[name](proof)
    from audit.store.base.canonical import to_json

    parts["log.jsonl"] = to_json(proof).encode() + b"\n"
    refused = invoke("verify", str(zipped(tmp_path / "broken.zip", restated(parts))))
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "log.jsonl" in refused.stderr


@pytest.mark.medium
def test_a_bundle_with_erased_requests_is_exported_verified_and_imported(any_url, tmp_path):
    with Store.open(any_url, create=False) as store:
        fill_finished(store)
    erased = invoke("db", "redact", "latest", "case-a#0", "--reason", "asked for", "--yes", "--store", any_url)
    assert erased.exit_code == 0, erased.stderr
    key = signed(any_url, tmp_path)
    bundle = exported(any_url, tmp_path / "run.zip")
    assert parts_of(bundle)["tables/content.jsonl"].count(b"\n") == 2
    shown = invoke("verify", str(bundle), "--key", key)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert invoke("verify", str(bundle), "--judge").exit_code == 3
    target = str(tmp_path / "target.db")
    assert invoke("import", str(bundle), "--store", target).exit_code == 0
    checked = invoke("db", "check", "--store", target)
    assert (checked.exit_code, checked.stdout.splitlines()[-1]) == (0, "content of 2 requests was erased, on record")
    with connected(target) as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM erasure").scalar_one() >= 2
