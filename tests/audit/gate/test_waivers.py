"""`audit waive` and `audit review`: exit codes, and what the gate makes of waivers and reviews."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import schemas
from audit.attest.decision import DecisionFacts, decision_problem, decision_statement, urn
from audit.attest.statement import StatementSubject
from audit.attest.waivers import (
    Author,
    PolicyReference,
    ReviewOutcome,
    RunReference,
    SignedReview,
    Stated,
    Unmet,
    Waiver,
    review_statement,
    waiver_statement,
)
from audit.attest.waivers import read as read_statement
from audit.errors import UserError
from audit.gate.decide import decide
from audit.gate.decision import Decision, GateOutcome
from audit.gate.policy import load_policy
from audit.gate.policy_parts import PolicyParts, ReviewRule, TrustedKeys
from audit.report.statements.disclosure import disclosure
from audit.report.tables.results import results
from audit.store import RunStatus, Store, StoredDecision
from audit.store.base import keys
from audit.store.base.keys import PublicKey
from tests.audit.gate.runs import NOW, facts, stored_run
from tests.audit.invoke import invoke

POLICY = """\
version: 1
name: small
require:
  - {claim: liveness, checks: [liveness], scope: some_arm}
evidence: {min_tokens: 5000, max_age: 30d, stored_verdicts: true}
waivers:
  keys: {Alice: "%s", Bob: "%s"}
  longest: 14d
  requirements: [min_tokens, liveness]
"""
NAMES = ("alice", "bob", "eve")


@dataclass(frozen=True)
class Desk:
    """A store with one run, a policy, and the keys of three people in a folder."""

    url: str
    folder: Path

    def waive(self, *more: str, who: str = "alice", **changes: str) -> Any:
        wanted = {"requirement": "min_tokens", "reason": "a pilot", "expires": "7d", "actor": who} | changes
        options = [f"--{name}={value}" for name, value in wanted.items()]
        place = (f"--policy={self.folder / 'policy.yaml'}", f"--key={self.folder / who}", f"--store={self.url}")
        return invoke("waive", "latest", *place, *options, *more)

    def review(self, *more: str, who: str = "bob", **changes: str) -> Any:
        wanted = {"outcome": "approve", "comment": "seen", "actor": who} | changes
        options = [f"--{name}={value}" for name, value in wanted.items()]
        return invoke("review", "latest", f"--key={self.folder / who}", f"--store={self.url}", *options, *more)

    def gate(self) -> Any:
        place = (f"--policy={self.folder / 'policy.yaml'}", f"--store={self.url}")
        return invoke("gate", "latest", *place, "--trust-verdicts")


@pytest.fixture
def desk(tmp_path) -> Desk:
    public = {name: keys.init(tmp_path / name, f"example.org/{name}").text for name in NAMES}
    (tmp_path / "policy.yaml").write_text(POLICY % (public["alice"], public["bob"]))
    return Desk(stored_run(tmp_path), tmp_path)


def id_of(done: Any) -> str:
    assert done.exit_code == 0, done.output
    return done.stdout.split()[1]


@pytest.mark.slow
def test_each_path_of_both_commands_has_its_exit_code(desk):
    waiver = id_of(desk.waive())
    (desk.folder / "none.yaml").write_text("\n".join(POLICY.splitlines()[:5]))
    paths = {
        "no such requirement is unmet": (desk.waive(requirement="coverage"), 2),
        "that is over": (desk.waive(expires="2020-01-01"), 2),
        "write a duration like": (desk.waive(expires="soon"), 2),
        "longer than 14 days": (desk.waive(expires="15d"), 2),
        "the policy does not list": (desk.waive(who="eve"), 2),
        "accepts no waivers": (desk.waive(f"--policy={desk.folder / 'none.yaml'}"), 2),
        "cannot be read": (desk.waive(f"--key={desk.folder / 'nobody'}"), 2),
        "Missing option '--reason'": (invoke("waive", "latest", "--policy=x", "--requirement=x", "--expires=1d"), 2),
        "not the beginning of one waiver's id": (desk.review(f"--waiver={waiver[:7]}"), 2),
        "nobody approves their own waiver": (desk.review(f"--waiver={waiver}", who="alice"), 2),
        "approves their own waiver": (desk.review(f"--waiver={waiver}", actor="ALICE"), 2),
        "remove --role": (desk.review(f"--waiver={waiver}", role="safety"), 2),
        "is not one of": (desk.review(outcome="perhaps"), 2),
        "no run": (desk.review("--store=none.db"), 2),
    }
    for says, (done, code) in paths.items():
        assert done.exit_code == code, done.output
        assert says in done.output or says == "no run", done.output
        assert "Traceback" not in done.output
    assert desk.review().exit_code == 0
    with Store.open(desk.url, create=False) as store:
        store.set_status(store.resolve("latest"), RunStatus.FAILED, "broken off")
    for done in (desk.waive(), desk.review()):
        assert done.exit_code == 3, done.output


@pytest.mark.slow
def test_the_gate_honours_a_waiver_until_somebody_withdraws_it(desk):
    assert desk.gate().exit_code == 3
    liveness = id_of(desk.waive(requirement="liveness"))
    tokens = id_of(desk.waive())
    assert "counts for nothing: 0 of 1 approvals" in desk.gate().stdout
    for waiver in (liveness, tokens):
        assert desk.review(f"--waiver={waiver[:12]}").exit_code == 0
    allowed = desk.gate()
    assert allowed.exit_code == 0, allowed.output
    assert allowed.stdout.count("by alice (key of Alice), approved by bob (key of Bob): a pilot (waiver ") == 2
    # it can be renewed while it holds
    assert desk.waive(ticket="OPS-7").exit_code == 0
    assert desk.review(f"--waiver={tokens}", who="alice", outcome="reject", comment="no more").exit_code == 0
    shown = invoke("show", "latest", "--json", f"--store={desk.url}")
    document = json.loads(shown.stdout)
    Draft202012Validator(schemas.load("results")).validate(document)
    assert [entry["kind"] for entry in document["signed"]] == ["waiver"] * 3 + ["review"] * 3
    assert f"review {document['signed'][-1]['id'][:12]}: reject waiver {tokens[:12]}, by alice" in (
        invoke("show", "latest", f"--store={desk.url}").stdout
    )
    withdrawn = desk.gate()
    assert withdrawn.exit_code == 3
    assert "alice rejected it: no more" in withdrawn.stdout
    with Store.open(desk.url, create=False) as store:
        run = store.resolve("latest")
        waived = [line.text for line in disclosure(results(store, run), (), None).waived]
        assert sum("waived until" in text for text in waived) == 3
        assert not any("counts for nothing" in text for text in waived)


KEYS = {name: PublicKey(name, bytes([number]) * 32) for number, name in enumerate(("carol", "dave", "eve"))}
RUN = RunReference("01J00000000000000000000000", "e" * 64)
LATER = NOW + timedelta(days=1)
RULE = ReviewRule("safety", TrustedKeys({name: KEYS[name] for name in ("carol", "dave")}), 2, timedelta(days=30))


def review(name: str, hours: float = 0, **changes: Any) -> SignedReview:
    author = Author(name, KEYS[name], NOW + timedelta(hours=hours))
    made = SignedReview(RUN, None, None, ReviewOutcome.APPROVE, "safety", "seen", author, None, id=f"{name}{hours}" * 8)
    return replace(made, **changes)


def reviewed(*reviews: SignedReview, rule: ReviewRule = RULE) -> GateOutcome:
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts(reviews=(rule,)))
    return decide(replace(facts(), stated=Stated(reviews=reviews)), policy, (), LATER, no_subject=True)


REJECT = {"outcome": ReviewOutcome.REJECT}
BOTH = (review("carol"), review("dave"))
CASES: dict[str, tuple[tuple[SignedReview, ...], Decision, str]] = {
    "both approve": (BOTH, Decision.ALLOW, "carol as safety approved the run: seen"),
    "nobody": ((), Decision.CANNOT_DECIDE, "0 of 2 approvals in the role safety"),
    "one": ((review("carol"),), Decision.CANNOT_DECIDE, "1 of 2 approvals"),
    "one twice": ((review("carol"), review("carol", 1)), Decision.CANNOT_DECIDE, "1 of 2 approvals"),
    "a stranger": ((review("carol"), review("eve")), Decision.CANNOT_DECIDE, "which the policy does not list"),
    "in another role": (
        (review("carol"), review("dave", role="legal")),
        Decision.CANNOT_DECIDE,
        "the policy asks for no review in this role",
    ),
    "too old": ((review("carol"), review("dave", -24 * 40)), Decision.CANNOT_DECIDE, "older than 30 days"),
    "over": ((review("carol"), review("dave", until=NOW)), Decision.CANNOT_DECIDE, "it expired on"),
    "of another run": (
        (review("carol"), review("dave", run=RunReference(RUN.ulid, "0" * 64))),
        Decision.CANNOT_DECIDE,
        "with another root",
    ),
    "under another policy": (
        (review("carol"), review("dave", policy=PolicyReference("other", "0" * 64))),
        Decision.CANNOT_DECIDE,
        "it is under policy other",
    ),
    "from the future": ((review("carol"), review("dave", 48)), Decision.CANNOT_DECIDE, "not valid yet"),
    "rejected": ((*BOTH, review("carol", 1, **REJECT)), Decision.BLOCK, "carol as safety rejected the run: seen"),
    "rejected at one moment": ((*BOTH, review("carol", **REJECT)), Decision.BLOCK, "rejected the run"),
    "rejected without a role": ((*BOTH, review("carol", role=None, **REJECT)), Decision.BLOCK, "carol rejected"),
    "rejected by a stranger": ((*BOTH, review("eve", **REJECT)), Decision.ALLOW, "which the policy does not list"),
    "approved again": ((*BOTH, review("carol", -1, **REJECT)), Decision.ALLOW, "carol as safety approved"),
}


@pytest.mark.medium
def test_reviews_count_by_role_key_age_and_order():
    for name, (reviews, answer, says) in CASES.items():
        outcome = reviewed(*reviews)
        assert outcome.answer is answer, (name, outcome.reasons)
        assert any(says in reason.text for reason in outcome.reasons), (name, outcome.reasons)
    revoked = replace(RULE, keys=TrustedKeys(RULE.keys.trusted, (KEYS["dave"],)))
    assert reviewed(*BOTH, rule=revoked).answer is Decision.CANNOT_DECIDE
    # without rules a review is listed and decides nothing
    policy = replace(load_policy("standard"), coverage={}, parts=PolicyParts())
    known = replace(facts(), stated=Stated(reviews=(review("eve", **REJECT),)))
    outcome = decide(known, policy, (), LATER, no_subject=True)
    assert outcome.answer is Decision.ALLOW
    assert any("rejected the run" in reason.text for reason in outcome.reasons)


def test_a_statement_gives_its_value_again_and_a_malformed_one_is_named():
    made = Waiver(
        RUN, PolicyReference("p", "a" * 64), Unmet("block", "law", "a", "law"), "r", None, review("eve").author, NOW
    )
    statement = waiver_statement(made)
    assert read_statement(statement, "", "w") == made
    said = review("eve", until=NOW, waiver="b" * 64, id="")
    assert read_statement(review_statement(said), "", "r") == said
    for change, problem in (
        ({"reason": ""}, "malformed"),
        ({"at": "9" * 30}, "at is no moment"),
        ({"key": "x"}, "key"),
    ):
        broken = replace(statement, predicate={**statement.predicate, **change})
        with pytest.raises(UserError, match=problem):
            read_statement(broken, "", "w")
    with pytest.raises(UserError, match="neither a waiver nor a review"):
        read_statement(replace(statement, predicate_type="x"), "", "w")


def test_a_decision_states_the_first_end_that_it_rests_on():
    reasons = (
        "allow: law: waived until 2027-01-02 03:04:05 UTC by alice (key of Alice): until 2020-01-01 00:00:00 UTC",
        "allow: reviews: counts until 2027-01-01 00:00:00 UTC: carol as safety approved the run",
        "allow: waivers: waiver 1 counts for nothing: waived until 2020-01-01 00:00:00 UTC",
        "cannot_decide: law: waived until 2020-01-01 00:00:00 UTC",
    )
    made = StoredDecision(None, "a" * 64, {}, "allow", reasons, "ci", NOW)
    assert made.until == datetime(2027, 1, 1, tzinfo=UTC)
    assert replace(made, reasons=reasons[2:]).until is None
    inputs = {urn("waiver", "1", "until", "2027-01-02T00:00:00+00:00"): "b" * 64, urn("suite", "until"): "c" * 64}
    facts_of = DecisionFacts("R", "allow", NOW, "p", "a" * 64, (StatementSubject("target", "d" * 64),), inputs)
    stated = decision_statement(facts_of).predicate
    assert decision_problem(stated, None, NOW) is None
    assert "ended 2027-01-02" in str(decision_problem(stated, None, NOW + timedelta(days=400)))
    odd = decision_statement(replace(facts_of, inputs={urn("waiver", "1", "until", "soon"): "b" * 64})).predicate
    assert "ended 1970" in str(decision_problem(odd, None, NOW))


WRONG = {
    "can never be waived": ("[min_tokens, liveness]", "[lossless]"),
    "approvals is 2, which needs 3 different keys; 2 are listed": ("longest: 14d", "longest: 14d\n  approvals: 2"),
    "write a duration": ("longest: 14d", "longest: forever"),
    "is no public key": ('Alice: "example.org/alice', 'Alice: "example.org/mallory'),
    "number is 2": ("waivers:", 'reviews: {safety: {number: 2, keys: {Eve: "%s"}}}\nwaivers:'),
}


@pytest.mark.medium
def test_a_policy_that_cannot_be_met_is_refused_in_one_line(desk):
    path, whole = desk.folder / "policy.yaml", (desk.folder / "policy.yaml").read_text()
    key = keys.read_public(desk.folder / "eve.pub").text
    for says, (old, new) in WRONG.items():
        path.write_text(whole.replace(old, new.replace("%s", key), 1))
        with pytest.raises(UserError, match=says):
            load_policy(path)
