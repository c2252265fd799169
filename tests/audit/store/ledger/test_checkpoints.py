from __future__ import annotations

import json
import shutil

import pytest
from sqlalchemy import text

from audit.errors import UserError
from audit.store import Store
from audit.store.base import keys
from audit.store.base.merkle import leaf_hash, levels, merkle_root
from audit.store.ledger import log
from audit.store.ledger.proof import inclusion, root_from
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill_finished, made_store


@pytest.fixture
def signed(tmp_path):
    """A store with a finished run and a checkpoint of it."""
    url = made_store(tmp_path)
    key = keys.init(tmp_path / "k", "example.org/audit")
    assert keys.read_public(tmp_path / "k.pub") == key == keys.read_private(tmp_path / "k").public
    made = invoke("db", "checkpoint", "--key", str(tmp_path / "k"), "--out", str(tmp_path / "note"), "--store", url)
    assert made.exit_code == 0, made.stderr
    return url


def check(folder, url):
    return invoke("db", "check", "--checkpoint", str(folder / "note"), "--key", str(folder / "k.pub"), "--store", url)


def test_paths_lead_to_the_root_from_every_entry_of_every_size():
    for size in range(1, 40):
        data = [bytes([each]) for each in range(size)]
        tree = levels([leaf_hash(each) for each in data])
        for seq, each in enumerate(data):
            path = inclusion(tree, seq)
            assert root_from(leaf_hash(each), seq, size, path) == merkle_root(data)
            assert root_from(leaf_hash(b"other"), seq, size, path) != merkle_root(data)
            assert root_from(leaf_hash(each), seq, size, [*path, b"x" * 32]) is None


@pytest.mark.medium
def test_a_store_that_continues_its_checkpoint_is_whole(signed, tmp_path):
    with Store.open(signed, create=False) as store:
        fill_finished(store)
    assert check(tmp_path, signed).exit_code == 0
    again = invoke("db", "checkpoint", "--key", str(tmp_path / "k"), "--out", str(tmp_path / "note"), "--store", signed)
    assert again.exit_code == 0


@pytest.mark.medium
def test_an_older_copy_is_named(signed, tmp_path):
    with Store.open(signed, create=False) as store:
        store._engine.dispose()
    shutil.copy(tmp_path / "audit.db", tmp_path / "old.db")
    with Store.open(signed, create=False) as store:
        fill_finished(store)
    later = invoke("db", "checkpoint", "--key", str(tmp_path / "k"), "--out", str(tmp_path / "note"), "--store", signed)
    assert later.exit_code == 0, later.stderr
    result = check(tmp_path, str(tmp_path / "old.db"))
    assert result.exit_code == 1
    assert "an older copy of the store was put in place" in result.stdout


@pytest.mark.medium
def test_a_rewrite_with_our_own_code_is_named_and_not_signed(signed, tmp_path):
    with connected(signed) as connection, connection.begin():
        for name in ("check_result_update", "log_entry_delete"):
            body = connection.execute(text(f"SELECT sql FROM sqlite_master WHERE name = 'guard_{name}'")).scalar_one()
            connection.execute(text(f"DROP TRIGGER guard_{name}"))
            if name == "check_result_update":
                connection.execute(text("UPDATE check_result SET verdict = 'certified'"))
            else:
                connection.execute(text("DELETE FROM log_entry"))
            connection.execute(text(body))
    with Store.open(signed, create=False) as store, log.LoggedSession(store._engine) as session, session.begin():
        log.log_all(session)
    assert invoke("db", "check", "--store", signed).exit_code == 0
    result = check(tmp_path, signed)
    assert result.exit_code == 1
    assert "the log was rewritten" in result.stdout
    refused = invoke("db", "checkpoint", "--key", str(tmp_path / "k"), "--out", str(tmp_path / "n"), "--store", signed)
    assert refused.exit_code == 3
    assert "not signed: the first" in refused.stderr
    assert not (tmp_path / "n").exists()


@pytest.mark.medium
def test_a_proof_holds_without_the_store_and_only_as_it_was(signed, tmp_path):
    path = tmp_path / "proof"
    assert invoke("db", "prove", "latest", "--out", str(path), "--store", signed).exit_code == 0
    (tmp_path / "audit.db").unlink()
    verify = ("db", "verify-proof", str(path), "--key", str(tmp_path / "k.pub"))
    result = invoke(*verify)
    assert result.exit_code == 0, result.stderr
    assert "check_result: name law, verdict fault" in result.stdout
    document = json.loads(path.read_text())
    for entry in document["entries"]:
        entry["data"] = entry["data"].replace("fault", "certified")
    path.write_text(json.dumps(document))
    assert invoke(*verify).exit_code == 2
    assert "is not in the log" in invoke(*verify).stderr


def test_keys_are_private_and_never_overwritten(tmp_path):
    path = tmp_path / "k"
    keys.init(path, "a")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exists already"):
        keys.init(path, "a")
    path.chmod(0o640)
    with pytest.raises(UserError, match="other users can read"):
        keys.read_private(path)
    with pytest.raises(UserError, match="no spaces"):
        keys.init(tmp_path / "b", "a b")


@pytest.mark.medium
def test_a_note_of_another_key_is_refused(signed, tmp_path):
    keys.init(tmp_path / "other", "example.org/audit")
    (tmp_path / "k.pub").write_text((tmp_path / "other.pub").read_text())
    result = check(tmp_path, signed)
    assert result.exit_code == 2
    assert "not signed by the key" in result.stderr
