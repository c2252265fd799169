"""What the threat model says that nobody can see: each sentence with "this passes", where no other test shows it."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from audit.store.base import keys
from audit.store.base.connection import open_engine, parse_url
from audit.store.ledger import log
from tests.audit.gate.attacks.honest import POLICY, SUITE, asked, copied, edited, ran
from tests.audit.invoke import invoke

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate_attacks")]


def test_a_run_that_failed_in_another_store_is_unknown_in_this_one(tmp_path):
    for name, document in (("first", SUITE | {"arms": [SUITE["arms"][0]]}), ("second", SUITE)):
        (tmp_path / name).mkdir()
        ran(tmp_path / name, document)
    assert asked(tmp_path / "first", "latest", store=tmp_path / "first" / "audit.db").code == 3
    passed = asked(tmp_path / "second", "latest", store=tmp_path / "second" / "audit.db")
    assert passed.code == 0
    assert not any(reason.startswith("attempts") for reason in passed.reasons)


def test_a_store_written_anew_passes_unless_somebody_signed_the_old_log(tmp_path):
    (tmp_path / "old").mkdir()
    store = ran(tmp_path / "old", SUITE)
    key, note = tmp_path / "log", tmp_path / "note"
    keys.init(key, "example.org/log")
    assert invoke("db", "checkpoint", "--key", str(key), "--out", str(note), "--store", str(store)).exit_code == 0
    anew = copied(store, tmp_path)
    edited(anew, "UPDATE run SET actor = 'somebody else'", "DELETE FROM log_entry")
    engine = open_engine(parse_url(str(anew)))
    with Session(engine) as session, session.begin():
        log.log_all(session)
    engine.dispose()
    assert asked(tmp_path, "latest", store=anew).code == 0
    trusted = {"trusted": {"log": keys.read_public(tmp_path / "log.pub").text}}
    signed = POLICY | {"keys": trusted, "evidence": POLICY["evidence"] | {"signed": True}}
    answer = asked(tmp_path, "latest", "--checkpoint", str(note), policy=signed, store=anew)
    assert (answer.code, "the log was rewritten" in answer.output or "has" in answer.output) == (3, True)
    assert asked(tmp_path, "latest", "--checkpoint", str(note), policy=signed, store=store).code == 0
