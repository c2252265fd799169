"""Speculation settings as columns, the views for governance, and the reason for a run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from audit.store import RunReason, Store, StoredDecision
from audit.store.base.governance import governance
from tests.audit.store import owner
from tests.audit.store.build import connected, fill, fill_finished, start
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.stores import tamper

__all__ = ["any_url", "cluster", "postgres"]

PROBED = {"mode": "tiled", "promises": "tree", "probe": {"mode": "tiled", "passed": True}}
DRAFTED = {"backend": "native", "proposer": "draft_model", "gamma": 4, "draft": {"model_sha256": "d" * 64}}


def settings(*, lossless=True, **effective):
    return governance({}, {**DRAFTED, **effective}, lossless, {"specaudit": "0.1"})


@pytest.mark.parametrize(
    ("effective", "lossless", "expected"),
    [
        ({"protocol": "greedy", "numerics": PROBED}, True, "bitwise"),
        ({"protocol": "greedy", "numerics": PROBED | {"promises": "none"}}, True, "token"),
        ({"protocol": "greedy", "numerics": PROBED | {"promises": "chain"}}, True, "bitwise"),
        ({"protocol": "gumbel", "numerics": PROBED | {"promises": "chain"}, "proposer_shape": "tree"}, True, "token"),
        ({"protocol": "gumbel"}, True, "token"),
        ({"protocol": "chain", "numerics": PROBED}, True, "law"),
        ({"protocol": "ensemble"}, False, "bounded"),
        ({"protocol": "typical"}, False, "none"),
        ({"protocol": "greedy", "numerics": PROBED, "fault": "argmax_draft"}, True, "none"),
        ({"protocol": "greedy", "proposer": "plain"}, True, None),
    ],
)
def test_the_expected_equivalence_follows_rule_numerics_and_fault(effective, lossless, expected):
    assert settings(lossless=lossless, **effective).expected_equivalence == expected


def test_the_version_is_that_of_what_proposes():
    assert settings().proposer_version == "d" * 64
    assert settings(draft_version="e" * 64).proposer_version == "e" * 64
    assert settings(draft=None).proposer_version == "specaudit 0.1"
    assert settings(proposer="plain").proposer_version is None


def test_a_tree_states_its_options_and_an_endpoint_its_own_report():
    tree = settings(proposer_shape="tree", proposer_options={"width": 2})
    assert (tree.tree, settings().tree) == ('{"width":2}', None)
    off = governance({"proposer": "eagle"}, {"requested": {}, "effective": {"speculation": False}}, True, {})
    on = governance({"proposer": "eagle"}, {"requested": {}, "effective": {}}, True, {})
    assert (off.speculation, off.proposer, on.speculation, on.proposer) == (False, None, True, "eagle")


@pytest.mark.medium
def test_every_view_for_governance_gives_rows(any_url):
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start(reason=RunReason("release 4", "OPS-7")))
        assert store.load_run(run).reason == RunReason("release 4", "OPS-7")
        run = fill_finished(store)
        store.add_pieces(run, "abcdefgh".__getitem__)
        store.add_decision(StoredDecision(run, "e" * 64, {}, "allow", ("all certified",), "ci", datetime.now(UTC)))
    with connected(any_url, read_only=True) as connection:

        def rows(view):
            return connection.execute(text(f"SELECT * FROM {view} WHERE run = :run"), {"run": run}).all()

        (summary,) = rows("v_run")
        assert (summary.arms, summary.requests, summary.n_output, summary.purpose) == (2, 4, 19, None)
        base, spec = sorted(rows("v_arm"), key=lambda row: row.arm)
        assert (base.n_drafted, spec.n_drafted, spec.n_accepted) == (0, 14, 7)
        assert [row.prompt for row in rows("v_prompt")] == ["bcd"] * 4
        assert [row.decision for row in rows("v_gate")] == ["allow"]
        places = [tuple(row) for row in rows("v_acceptance_position")]
        assert [place[2:6] for place in sorted(places)] == [(1, 4, 4, 3), (2, 4, 4, 2), (3, 4, 3, 1), (4, 4, 3, 1)]
        steps = {(row.arm, row.context_from): row.n_steps for row in rows("v_acceptance_context")}
        assert steps == {("base", 0): 8, ("spec", 0): 4}
        for name in ("proposer", "gamma", "day"):  # these arms state no proposer
            assert connection.execute(text(f"SELECT * FROM v_acceptance_{name}")).all() == []


def test_a_prompt_is_listed_in_the_order_of_its_tokens(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        store.add_pieces(run, "abcdefgh".__getitem__)
    owner.tamper(any_url, "UPDATE content SET prompt_ids = '[7, 1, 3, 1, 0]' WHERE request_id = 1")
    with connected(any_url, read_only=True) as connection:
        prompts = connection.execute(text("SELECT prompt FROM v_prompt WHERE run = :run"), {"run": run}).scalars()
        assert "hbdba" in prompts.all()


def test_purpose_and_ticket_are_listed(any_url):
    with Store.open(any_url, create=False) as store:
        run = store.begin_run(start(reason=RunReason("release 4", "OPS-7")))
    with connected(any_url, read_only=True) as connection:
        query = "SELECT purpose, ticket FROM v_run WHERE run = :run"
        assert connection.execute(text(query), {"run": run}).all() == [("release 4", "OPS-7")]


@pytest.mark.medium
@pytest.mark.parametrize("change", ["speculation = 1", "rule = 'tree'", "proposer = 'eagle'"])
def test_changed_settings_are_found(store, change):
    run = fill_finished(store)
    tamper(store, "arm_speculation", change, "arm_id = 2")
    assert "spec" in {broken.place for broken in store.broken_places(run)}


def test_a_changed_ticket_breaks_the_root(store):
    run = store.begin_run(start(reason=RunReason(None, "OPS-7")))
    tamper(store, "run", "ticket = 'OPS-8'", "id = 1")
    assert "base" in {broken.place for broken in store.broken_places(run)}
    other = fill(store)
    tamper(store, "run", "ticket = 'OPS-8'", "id = 2")
    assert "base" in {broken.place for broken in store.broken_places(other)}
