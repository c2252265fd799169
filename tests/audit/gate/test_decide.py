from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.gate.decide import decide
from audit.gate.decision import Decision, GateOutcome
from audit.gate.evidence import certified_coverage
from audit.gate.facts import RunFacts
from audit.gate.policy import ArmFilter, Policy, Requirement, Scope, load_policy
from audit.gate.policy_parts import NO_PARTS
from audit.gate.subjects import Subject
from audit.store import ArtifactRef, RunStatus, StoredCoverage
from engine.record.effective import Effective
from tests.audit.gate.runs import DRAFT, NOW, SUITE, TARGET, arm, check, facts


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The standard policy for any models, made stricter: every arm must replay, and evidence must be L3."""
    standard = load_policy("standard")
    require = (replace(each, arms=ArmFilter()) if each.claim == "replay" else each for each in standard.require)
    return replace(
        standard, require=tuple(require), min_level=Level.L3, named=(), named_if_used=(), coverage={}, parts=NO_PARTS
    )


def with_check(base: RunFacts, new) -> RunFacts:
    kept = [each for each in base.checks if (each.arm, each.check) != (new.arm, new.check)]
    return replace(base, checks=(*kept, new))


def without(base: RunFacts, arm_name: str, name: str) -> RunFacts:
    return replace(base, checks=tuple(each for each in base.checks if (each.arm, each.check) != (arm_name, name)))


def answer(base: RunFacts, policy: Policy, *subjects: Subject, days: float = 1) -> GateOutcome:
    return decide(base, policy, subjects, NOW + timedelta(days=days))


def only_reason(outcome: GateOutcome) -> str:
    (reason,) = outcome.reasons
    assert reason.answer is outcome.answer
    return f"{reason.requirement}: {reason.text}"


def test_all_met_is_allowed_without_reasons(policy):
    assert answer(facts(), policy) == GateOutcome(Decision.ALLOW, ())


def standard() -> Policy:
    """The standard policy without its floors of coverage."""
    return replace(load_policy("standard"), coverage={}, parts=NO_PARTS)


BOTH = (Subject("target", TARGET, "--subject"), Subject("draft", DRAFT, "--subject"))


class TestStandard:
    def recorded_lightly(self) -> RunFacts:
        """The greedy arm at L2: equality can be shown, replay cannot run."""
        base = with_check(facts(), check("greedy", "greedy_equality", level=Level.L2))
        return with_check(base, check("greedy", "replay", Verdict.NOT_RUN, Level.L2))

    def test_a_greedy_arm_needs_equality_only(self):
        assert answer(self.recorded_lightly(), standard(), *BOTH) == GateOutcome(Decision.ALLOW, ())

    def test_a_sampled_arm_must_replay(self):
        outcome = answer(without(self.recorded_lightly(), "sampled", "replay"), standard(), *BOTH)
        assert only_reason(outcome) == "replay: arm sampled: replay is missing"

    def test_a_replay_fault_of_a_greedy_arm_blocks_all_the_same(self):
        outcome = answer(with_check(facts(), check("greedy", "replay", Verdict.FAULT)), load_policy("standard"))
        assert outcome.answer is Decision.BLOCK


def test_exit_codes():
    assert [each.exit_code for each in (Decision.ALLOW, Decision.BLOCK, Decision.CANNOT_DECIDE)] == [0, 1, 3]


class TestChecks:
    @pytest.mark.parametrize("verdict", [Verdict.FAULT, Verdict.INCONCLUSIVE])
    @pytest.mark.parametrize(
        ("arm_name", "name", "claim"),
        [
            ("greedy", "replay", "replay"),
            ("sampled", "replay", "replay"),
            ("sampled", "law", "law"),
            ("sampled", "acceptance_theory", "acceptance"),
        ],
    )
    def test_a_contradicted_claim_blocks(self, policy, verdict, arm_name, name, claim):
        outcome = answer(with_check(facts(), check(arm_name, name, verdict)), policy)
        assert outcome.answer is Decision.BLOCK
        assert only_reason(outcome) == f"{claim}: arm {arm_name}: {name} is {verdict}: told so"

    @pytest.mark.parametrize("verdict", [Verdict.FAULT, Verdict.INCONCLUSIVE])
    def test_unequal_output_blocks(self, policy, verdict):
        outcome = answer(with_check(facts(), check("greedy", "greedy_equality", verdict)), policy)
        assert outcome.answer is Decision.BLOCK
        assert all("greedy_equality" in reason.text for reason in outcome.reasons)

    def test_a_quantity_that_nobody_looked_at_twice_cannot_be_decided(self, policy):
        outcome = answer(with_check(facts(), check("sampled", "second_accounts", Verdict.INCONCLUSIVE)), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "accounts: arm sampled: told so"

    def test_a_waived_quantity_is_remarked(self, policy):
        details = {"waived": {"target rows": "weights are not here"}, "looked_at_once": ["target rows", "latencies"]}
        waived = replace(check("sampled", "second_accounts"), details=details)
        outcome = answer(with_check(facts(), waived), policy)
        assert outcome.answer is Decision.ALLOW
        assert only_reason(outcome) == "accounts: arm sampled, not looked at twice: target rows (weights are not here)"

    def test_a_missing_check_cannot_be_decided(self, policy):
        outcome = answer(without(facts(), "sampled", "law"), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "law: arm sampled: law is missing"

    def test_a_check_that_did_not_run_cannot_be_decided(self, policy):
        outcome = answer(with_check(facts(), check("sampled", "law", Verdict.NOT_RUN)), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "law: arm sampled: law is not_run: told so"

    def test_every_unmet_requirement_is_named_and_a_block_outweighs(self, policy):
        broken = with_check(without(facts(), "sampled", "law"), check("greedy", "replay", Verdict.FAULT))
        outcome = answer(broken, policy)
        assert outcome.answer is Decision.BLOCK
        assert {(reason.requirement, reason.answer) for reason in outcome.reasons} == {
            ("law", Decision.CANNOT_DECIDE),
            ("replay", Decision.BLOCK),
        }

    def test_a_fault_outside_the_requirements_blocks(self, policy):
        outcome = answer(with_check(facts(), check("greedy", "law", Verdict.FAULT)), policy)
        assert outcome.answer is Decision.BLOCK
        assert only_reason(outcome).startswith("law: arm greedy: law is fault")

    def test_a_weaker_evidence_level_cannot_be_decided(self, policy):
        outcome = answer(with_check(facts(), check("sampled", "law", level=Level.L2)), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "law: arm sampled: law rests on evidence L2, L3 is required"


class TestScopes:
    def test_no_arm_with_equality_cannot_be_decided(self, policy):
        base = facts()
        counts = replace(base.run.arms[2].counts, output=10_000)
        base = replace(base, run=replace(base.run, arms=(arm("sampled", "chain", 0.8, counts=counts),)))
        outcome = answer(base, policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert "no arm of the run has greedy_equality or coupled_equality or bitwise certified" in only_reason(outcome)

    def test_a_sampled_shared_noise_arm_must_show_coupled_equality(self, policy):
        base = facts()
        arms = (base.run.arms[1], arm("sampled", "gumbel", 0.8))
        outcome = answer(replace(base, run=replace(base.run, arms=arms)), policy)
        assert only_reason(outcome) == "equality: arm sampled: coupled_equality is missing"
        assert answer(
            with_check(replace(base, run=replace(base.run, arms=arms)), check("sampled", "coupled_equality")), policy
        ) == GateOutcome(Decision.ALLOW, ())

    def test_an_arm_that_no_requirement_is_for_cannot_be_decided(self, policy):
        narrow = replace(policy, require=(Requirement("replay", ("replay",), arms=ArmFilter(names=("greedy",))),))
        assert only_reason(answer(facts(), narrow)) == "require: no requirement of the policy is for arm sampled"

    def test_a_named_arm_must_be_there(self, policy):
        wanted = Requirement("replay", ("replay",), arms=ArmFilter(names=("third",)))
        outcome = answer(facts(), replace(policy, require=(*policy.require, wanted)))
        assert only_reason(outcome) == "replay: the run has no candidate arm third"

    def test_an_arm_without_a_recorded_rule_escapes_no_filter(self, policy):
        base = facts()
        arms = (base.run.arms[1], arm("sampled", "chain", 0.8, spec={}))
        outcome = answer(replace(base, run=replace(base.run, arms=arms)), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert any("coupled_equality is missing" in reason.text for reason in outcome.reasons)

    def test_a_contradiction_in_one_arm_is_not_outvoted(self, policy):
        some = replace(policy, require=(Requirement("replay", ("replay",), Scope.SOME_ARM),))
        outcome = answer(with_check(facts(), check("sampled", "replay", Verdict.INCONCLUSIVE)), some)
        assert outcome.answer is Decision.BLOCK

    def test_a_run_without_candidates_cannot_be_decided(self, policy):
        base = facts()
        outcome = answer(replace(base, run=replace(base.run, arms=base.run.arms[:1])), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE


class TestRun:
    def test_stale_evidence_cannot_be_decided(self, policy):
        assert answer(facts(), policy, days=29.9).answer is Decision.ALLOW
        outcome = answer(facts(), policy, days=30.1)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "max_age: the run began 30.1 days ago, at most 30.0 days are allowed"

    def test_a_run_from_the_future_cannot_be_decided(self, policy):
        assert answer(facts(), policy, days=-1 / 1440).answer is Decision.ALLOW
        assert answer(facts(), policy, days=-1).answer is Decision.CANNOT_DECIDE

    @pytest.mark.parametrize("status", [RunStatus.RUNNING, RunStatus.FAILED, RunStatus.INTERRUPTED])
    def test_an_unfinished_run_cannot_be_decided(self, policy, status):
        base = facts()
        outcome = answer(replace(base, run=replace(base.run, status=status)), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert "not finished" in only_reason(outcome)

    def test_baseline_tokens_do_not_count(self, policy):
        base = facts()
        few = tuple(replace(each, counts=replace(each.counts, output=499)) for each in base.run.arms[1:])
        outcome = answer(replace(base, run=replace(base.run, arms=(base.run.arms[0], *few))), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "min_tokens: the candidate arms emitted 998 tokens, 1000 are required"

    def test_a_record_that_is_not_intact_cannot_be_decided(self, policy):
        outcome = answer(replace(facts(), broken=("request x: changed", "request y: changed")), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert "request x: changed and 1 more" in only_reason(outcome)

    def test_only_accepted_suites_count(self, policy):
        assert answer(facts(), replace(policy, suites=(SUITE,))).answer is Decision.ALLOW
        assert answer(facts(), replace(policy, suites=("0" * 64,))).answer is Decision.CANNOT_DECIDE

    def test_an_arm_broken_on_purpose_blocks(self, policy):
        base = facts()
        spec = {**base.run.arms[2].spec, "fault": "gremlin"}
        base = replace(base, run=replace(base.run, arms=(*base.run.arms[:2], replace(base.run.arms[2], spec=spec))))
        outcome = answer(base, policy)
        assert outcome.answer is Decision.BLOCK
        assert only_reason(outcome) == "known_bad: arm sampled is broken on purpose: gremlin"
        assert answer(base, replace(policy, allow_known_bad=True)).answer is Decision.ALLOW


class TestSpeculation:
    @pytest.mark.parametrize(
        ("drafted", "accepted", "text"),
        [
            (0, 0, "its record shows no drafted token"),
            (1506, 0, "none of its 1506 drafted tokens was accepted; use a draft that the target accepts"),
        ],
    )
    def test_an_arm_that_accepted_nothing_shows_nothing_about_speculation(self, policy, drafted, accepted, text):
        base = facts()
        idle = replace(base.run.arms[2], counts=replace(base.run.arms[2].counts, drafted=drafted, accepted=accepted))
        outcome = answer(replace(base, run=replace(base.run, arms=(*base.run.arms[:2], idle))), policy)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == f"speculation: arm sampled: {text}"


FLOORS = {"kept_whole": 10, "rejected_middle": 10}


class TestCoverage:
    def outcome(self, policy: Policy, coverage: dict[str, dict[str, int]]) -> GateOutcome:
        return answer(replace(facts(), coverage=coverage), replace(policy, coverage=FLOORS))

    def test_floors_that_are_reached(self, policy):
        counted = {"kept_whole": 10, "rejected_middle": 11, "long_prompt": 0}
        assert self.outcome(policy, {"greedy": counted, "sampled": counted}) == GateOutcome(Decision.ALLOW, ())

    @pytest.mark.parametrize(("counted", "count"), [({"rejected_middle": 10}, 0), ({"kept_whole": 9}, 9)])
    def test_a_situation_that_was_examined_too_seldom(self, policy, counted, count):
        enough = dict.fromkeys(FLOORS, 10)
        outcome = self.outcome(policy, {"greedy": enough, "sampled": {"rejected_middle": 10} | counted})
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == (
            f"coverage: arm sampled: kept_whole was examined {count} times, 10 are required"
        )

    def test_a_run_without_coverage_cannot_be_decided(self, policy):
        outcome = self.outcome(policy, {"greedy": dict.fromkeys(FLOORS, 10)})
        assert only_reason(outcome) == "coverage: arm sampled: the run does not record what its checks examined"

    def test_the_check_that_looked_least_counts_and_only_where_it_certified(self):
        rows = [
            StoredCoverage("sampled", name, "kept_whole", 40, examined, 10)
            for name, examined in (("replay", 40), ("law", 3), ("acceptance_theory", 1))
        ]
        checks = (
            check("sampled", "replay"),
            check("sampled", "law"),
            check("sampled", "acceptance_theory", Verdict.INCONCLUSIVE),
        )
        assert certified_coverage(checks, rows) == {"sampled": {"kept_whole": 3}}

    def test_a_policy_may_demand_that_the_suites_own_requests_met_them(self, policy):
        base, strict = facts(), replace(policy, own_coverage=True)
        assert answer(base, strict).answer is Decision.ALLOW
        added = replace(base.run.arms[2], counts=replace(base.run.arms[2].counts, directed=3))
        base = replace(base, run=replace(base.run, arms=(*base.run.arms[:2], added)))
        assert answer(base, policy).answer is Decision.ALLOW
        outcome = answer(base, strict)
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome) == "own_coverage: arm sampled: 3 directed requests stand in for the suite's own"


class TestLossless:
    def lossy(self, verdict: Verdict = Verdict.CERTIFIED) -> RunFacts:
        """The sampled arm under a lossy rule, with all its checks certified."""
        base = with_check(facts(), check("sampled", "law", verdict))
        changed = replace(base.run.arms[2], lossless=False, effective=Effective.from_json({"protocol": "ensemble"}))
        return replace(base, run=replace(base.run, arms=(*base.run.arms[:2], changed)))

    def test_a_lossy_rule_blocks_where_the_policy_requires_lossless(self, policy):
        outcome = answer(self.lossy(), replace(policy, require_lossless=True))
        assert outcome.answer is Decision.BLOCK
        assert only_reason(outcome) == "lossless: arm sampled: its rule ensemble declares itself lossy"

    def test_elsewhere_its_checks_decide(self, policy):
        lenient = replace(policy, require_lossless=False)
        assert answer(self.lossy(), lenient) == GateOutcome(Decision.ALLOW, ())
        assert answer(self.lossy(Verdict.FAULT), lenient).answer is Decision.BLOCK

    def test_a_baseline_s_rule_is_nobody_s_concern(self, policy):
        base = facts()
        arms = (replace(base.run.arms[0], lossless=False), *base.run.arms[1:])
        outcome = answer(replace(base, run=replace(base.run, arms=arms)), replace(policy, require_lossless=True))
        assert outcome.answer is Decision.ALLOW


class TestSubjects:
    @pytest.mark.parametrize("role", ["draft", "small"])
    def test_the_runs_own_digest_is_allowed(self, policy, role):
        assert answer(facts(), policy, Subject(role, DRAFT, "--subject")).answer is Decision.ALLOW

    def test_another_digest_blocks(self, policy):
        outcome = answer(facts(), policy, Subject("draft", TARGET, "folder"))
        assert outcome.answer is Decision.BLOCK
        assert only_reason(outcome) == f"subject draft: folder is sha256:{TARGET}, the run used sha256:{DRAFT}"

    def test_a_role_that_the_run_did_not_use_cannot_be_decided(self, policy):
        outcome = answer(facts(), policy, Subject("reranker", DRAFT, "--subject"))
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert "they used: draft, small, target, tokenizer" in only_reason(outcome)

    def test_the_policys_digests_hold_besides_the_command_lines(self, policy):
        strict = replace(policy, digests={"draft": "0" * 64})
        assert answer(facts(), strict, Subject("draft", DRAFT, "--subject")).answer is Decision.BLOCK
        assert answer(facts(), replace(policy, digests={"draft": DRAFT})).answer is Decision.ALLOW

    @pytest.mark.parametrize("key", ["named", "named_if_used"])
    def test_a_role_that_must_be_named(self, policy, key):
        strict = replace(policy, **{key: ("draft",)})
        wanted = "subject draft: the policy wants it named; add --subject draft=FOLDER, or say --no-subject"
        assert only_reason(answer(facts(), strict)) == wanted
        assert answer(facts(), strict, Subject("draft", DRAFT, "--subject")).answer is Decision.ALLOW
        assert answer(facts(), strict, Subject("small", DRAFT, "--subject")).answer is Decision.ALLOW

    @pytest.mark.parametrize("key", ["named", "named_if_used"])
    def test_a_waiver_is_a_reason_of_the_decision(self, policy, key):
        outcome = decide(facts(), replace(policy, **{key: ("draft",)}), (), NOW, no_subject=True)
        assert outcome.answer is Decision.ALLOW
        assert only_reason(outcome) == "subject draft: not named; --no-subject waived it"

    def test_a_waiver_hides_no_difference(self, policy):
        other = Subject("draft", TARGET, "folder")
        outcome = decide(facts(), replace(policy, named=("draft",)), (other,), NOW, no_subject=True)
        assert outcome.answer is Decision.BLOCK

    def copying(self) -> RunFacts:
        """The suite declares the draft, and no arm uses it."""
        base = facts()
        arms = (replace(each, spec={**each.spec, "draft": None}) for each in base.run.arms)
        return replace(base, run=replace(base.run, arms=tuple(arms)))

    def test_a_draft_that_no_candidate_arm_used_is_no_subject(self, policy):
        outcome = answer(self.copying(), policy, Subject("draft", DRAFT, "--subject"))
        assert only_reason(outcome) == "subject draft: no candidate arm used such a thing; they used: target, tokenizer"

    def test_a_role_that_is_named_if_used_need_not_be_where_no_arm_used_it(self, policy):
        assert answer(self.copying(), replace(policy, named_if_used=("draft",))).answer is Decision.ALLOW
        assert answer(self.copying(), replace(policy, named=("draft",))).answer is Decision.CANNOT_DECIDE

    def two_drafts(self) -> RunFacts:
        base = facts()
        other = ArtifactRef("draft", "other", "bundled:other", None, "9" * 64)
        spec = {**base.run.arms[2].spec, "draft": "other"}
        arms = (*base.run.arms[:2], replace(base.run.arms[2], spec=spec))
        return replace(base, run=replace(base.run, arms=arms, artifacts=(*base.run.artifacts, other)))

    def test_several_drafts_must_be_told_apart(self, policy):
        base = self.two_drafts()
        outcome = answer(base, policy, Subject("draft", DRAFT, "x"))
        assert outcome.answer is Decision.CANNOT_DECIDE
        assert only_reason(outcome).endswith("name one of: other, small")
        assert answer(base, policy, Subject("small", DRAFT, "x")).answer is Decision.ALLOW
        assert answer(base, policy, Subject("draft", "0" * 64, "x")).answer is Decision.BLOCK

    def test_a_role_is_meant_before_a_kind(self, policy):
        base = facts()
        other = ArtifactRef("draft", "draft", "bundled:other", None, "9" * 64)
        spec = {**base.run.arms[2].spec, "draft": "draft"}
        arms = (*base.run.arms[:2], replace(base.run.arms[2], spec=spec))
        base = replace(base, run=replace(base.run, arms=arms, artifacts=(*base.run.artifacts, other)))
        assert answer(base, policy, Subject("draft", "9" * 64, "x")).answer is Decision.ALLOW
        assert answer(base, policy, Subject("draft", DRAFT, "x")).answer is Decision.BLOCK
