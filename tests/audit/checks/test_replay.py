from dataclasses import replace

import numpy as np
import pytest

from audit.checks.base.interface import evaluate
from audit.checks.replay.check import CHECK
from audit.evidence.records import Evidence
from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, Protocol, RecordLevel, Role, SamplingParams
from engine.record.effective import LoopOwner
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world

CLEAN = {
    "chain, soft draft": Setup(),
    "chain, deterministic draft": Setup(draft="one_hot"),
    "chain, truncated": Setup(sampling=replace(SAMPLED, top_k=6, top_p=0.9)),
    "chain at temperature 0": Setup(draft="one_hot", sampling=GREEDY),
    "gumbel, coupled draft": Setup(Protocol.GUMBEL, "coupled"),
    "gumbel, independent draft": Setup(Protocol.GUMBEL, "soft"),
    "gumbel, deterministic draft": Setup(Protocol.GUMBEL, "one_hot"),
    "plain": Setup(Protocol.GUMBEL, "none"),
    "greedy": Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY),
    "ends inside drafts": Setup(eos=(3, 5)),
}


def replay(candidate):
    return evaluate(CHECK, Evidence(candidate), {})


@pytest.mark.medium
@pytest.mark.parametrize("setup", CLEAN.values(), ids=CLEAN.keys())
def test_a_clean_engine_is_certified(setup):
    result = replay(arm(world(4), setup, 6))
    assert result.verdict is Verdict.CERTIFIED, result.findings
    assert result.details["coverage"] == 1.0
    assert result.n >= 6


BROKEN = {
    "argmax_draft": ("its q and number give", Setup(fault="argmax_draft")),
    "from_p": ("recovered token", Setup(fault="from_p")),
    "sqrt": ("the rule rejects it", Setup(fault="sqrt")),
    "wrong_bonus_row": ("bonus token", Setup(fault="wrong_bonus_row")),
    "stale_q": ("its q and number give", Setup(fault="stale_q")),
    "lenient": ("the rule rejects it", Setup(fault="lenient")),
    "reuse": ("number of the recovered token", Setup(fault="reuse")),
    "unverified, greedy": (
        "the rule rejects it",
        Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY, fault="unverified"),
    ),
    "unverified, gumbel": ("the rule rejects it", Setup(Protocol.GUMBEL, "coupled", fault="unverified")),
}


@pytest.mark.medium
@pytest.mark.parametrize(("message", "setup"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_engine_is_named(message, setup):
    result = replay(arm(world(4), setup, 6))
    assert result.verdict is Verdict.FAULT
    assert any(message in finding.message for finding in result.findings), result.findings


@pytest.fixture(scope="module")
def clean():
    return arm(world(4), Setup(), 3)


@pytest.fixture(scope="module")
def rejected(clean):
    """The step and examined index of the first rejection in request 1."""
    trace = clean.requests[1].trace
    x = int(np.flatnonzero(trace.examined_accepted == 0)[0])
    step = int(np.searchsorted(np.cumsum(trace.n_examined), x, side="right"))
    return step, x


def only_finding(result, step):
    assert result.verdict is Verdict.FAULT
    assert {(each.request, each.step) for each in result.findings} == {("case-1", step)}, result.findings
    return result.findings[0].message


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("examined_uniform", lambda u: 0.5 + u / 2, "acceptance number"),
        ("examined_uniform", lambda u: np.nextafter(u, 1), "acceptance number"),
        ("examined_p", lambda p: p * (1 + 1e-6), "p of drafted token"),
        ("examined_q", lambda q: q * (1 + 1e-6), "q of drafted token"),
        ("examined_accepted", lambda a: 1 - a, "was accepted, the rule rejects it"),
    ],
)
def test_one_flipped_number_of_a_decision_is_found(clean, rejected, column, change, message):
    step, x = rejected
    old = getattr(clean.requests[1].trace, column)
    result = replay(changed(clean, 1, **{column: put(old, x, change(old[x]))}))
    assert message in only_finding(result, step)


@pytest.mark.parametrize(("column", "value"), [("residual_mass", 0.123), ("p", 0.5), ("uniform", 0.25)])
def test_one_flipped_number_of_a_recovered_token_is_found(clean, rejected, column, value):
    step, _ = rejected
    trace = clean.requests[1].trace
    at = int(np.cumsum(trace.n_emitted)[step]) - 1
    assert trace.role[at] == Role.RECOVERED
    result = replay(
        changed(clean, 1, **{column: put(getattr(trace, column), step if column == "residual_mass" else at, value)})
    )
    only_finding(result, step)


def test_a_flipped_last_token_is_found_in_its_step(clean):
    trace = clean.requests[1].trace
    token = put(trace.token, -1, (int(trace.token[-1]) + 1) % 16)
    result = replay(changed(clean, 1, token=token))
    assert result.verdict is Verdict.FAULT
    assert {each.step for each in result.findings} == {trace.steps - 1}


def test_a_flipped_logit_is_found(clean):
    trace = clean.requests[1].trace
    logits = trace.logits.copy()
    logits[10, int(trace.token[10])] += 0.01
    assert replay(changed(clean, 1, logits=logits)).verdict is Verdict.FAULT


def test_another_seed_contradicts_every_number(clean):
    header = clean.requests[1].trace.header
    other = replace(header, sampling=replace(header.sampling, seed=8))
    result = replay(changed(clean, 1, header=other))
    assert result.verdict is Verdict.FAULT
    assert result.details["violations"] > clean.requests[1].trace.steps


def test_a_broken_digest_is_a_violation_and_the_replay_names_the_step(clean, rejected):
    _, x = rejected
    old = clean.requests[1].trace.examined_uniform
    tampered = changed(clean, 1, examined_uniform=put(old, x, 0.999))
    damaged = replace(
        tampered, requests=tuple(replace(each, intact=each.request_id != "case-1") for each in tampered.requests)
    )
    messages = [each.message for each in replay(damaged).findings]
    assert any("digest" in message for message in messages)
    assert any("acceptance number" in message for message in messages)


def test_intact_content_with_a_broken_digest_is_a_violation(clean):
    damaged = replace(clean, requests=(replace(clean.requests[0], intact=False), *clean.requests[1:]))
    result = replay(damaged)
    assert (result.verdict, result.details["violations"]) == (Verdict.FAULT, 1)


STRUCTURE = {
    "gap in positions": (lambda t: {"position": put(t.position, 2, int(t.position[2]) + 1)}, "begins at position"),
    "parent of itself": (lambda t: {"node_parent": put(t.node_parent, 1, 1)}, "comes before its parent"),
    "a column too short": (lambda t: {"token": t.token[:-1]}, "entries"),
    "no such role": (lambda t: {"role": put(t.role, 0, 9)}, "no role"),
    "bonus called plain": (
        lambda t: {"role": put(t.role, int(np.flatnonzero(t.role == Role.BONUS)[0]), Role.PLAIN)},
        "role",
    ),
    "wrong row": (lambda t: {"row": put(t.row, 1, 7)}, "was decided by row"),
    "token outside": (lambda t: {"token": put(t.token, 0, 16)}, "the vocabulary has"),
}


@pytest.mark.parametrize(("change", "message"), STRUCTURE.values(), ids=STRUCTURE.keys())
def test_broken_structure_is_named(clean, change, message):
    result = replay(changed(clean, 1, **change(clean.requests[1].trace)))
    assert result.verdict is Verdict.FAULT
    assert any(message in each.message for each in result.findings), result.findings


def test_tokens_after_the_end_token_are_found(clean):
    trace = clean.requests[1].trace
    early = replace(trace.header, eos_ids=(int(trace.token[0]),))
    messages = [each.message for each in replay(changed(clean, 1, header=early)).findings]
    assert any("tokens follow the end token" in message for message in messages)


@pytest.mark.parametrize("reason", [FinishReason.EOS, FinishReason.STOP])
def test_a_finish_reason_that_the_tokens_do_not_give_is_found(clean, reason):
    old = clean.requests[0]
    wrong = replace(
        old, finish_reason=reason, trace=replace(old.trace, header=replace(old.trace.header, finish_reason=reason))
    )
    result = replay(replace(clean, requests=(wrong, *clean.requests[1:])))
    assert "finish reason" in result.findings[0].message


def test_tokens_of_the_request_must_be_those_of_the_record(clean):
    wrong = replace(clean.requests[0], tokens=clean.requests[0].tokens[:-1])
    assert replay(replace(clean, requests=(wrong, *clean.requests[1:]))).verdict is Verdict.FAULT


@pytest.mark.parametrize(
    ("level", "protocol"),
    [
        (RecordLevel.TOKENS, Protocol.CHAIN),
        (RecordLevel.SCALARS, Protocol.CHAIN),
        # chain and Gumbel rule are recomputed there, see test_cells and test_sparse_replay
        (RecordLevel.TOPK, Protocol.BLOCK),
        (RecordLevel.SCALARS, Protocol.GUMBEL),
    ],
)
def test_without_rows_sampled_decisions_are_not_certified(level, protocol):
    result = replay(arm(world(4), Setup(protocol, level=level), 3))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.details["coverage"] == 0.0


def test_greedy_decisions_are_certified_from_the_largest_scores():
    setup = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY, level=RecordLevel.TOPK)
    assert replay(arm(world(4), setup, 3)).verdict is Verdict.CERTIFIED
    broken = replay(arm(world(4), replace(setup, fault="unverified"), 3))
    assert broken.verdict is Verdict.FAULT
    assert any("the largest recorded score" in each.message for each in broken.findings)


def test_an_accepted_flag_without_its_token_is_found_at_every_level():
    setup = Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY)
    for level in RecordLevel:
        one = arm(world(4), replace(setup, level=level), 1)
        flags = one.requests[0].trace.examined_accepted
        result = replay(changed(one, 0, examined_accepted=put(flags, 0, 1 - flags[0])))
        assert any("were emitted as accepted" in each.message for each in result.findings)


@pytest.mark.parametrize("fault", ["sqrt", "lenient", "reuse"])
def test_scalars_already_show_wrong_numbers_and_decisions(fault):
    assert replay(arm(world(4), Setup(level=RecordLevel.SCALARS, fault=fault), 6)).verdict is Verdict.FAULT


def test_an_engine_that_reports_no_probability_is_replayed_without_it():
    """Its greedy tokens follow from the rows; our own engine always reports p."""
    one = arm(world(4), Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY), 2)
    silent = one
    for index, request in enumerate(one.requests):
        unknown = {name: np.full_like(getattr(request.trace, name), np.nan) for name in ("p", "examined_p")}
        silent = changed(silent, index, **unknown)
    ours = replay(silent)
    assert ours.verdict is Verdict.FAULT
    assert "no probability of a token is on record" in ours.findings[0].message
    foreign = replace(silent, effective=replace(silent.effective, decoder=LoopOwner.FOREIGN))
    assert replay(foreign).verdict is Verdict.CERTIFIED
    trace = foreign.requests[0].trace
    other = put(trace.token, 3, (trace.token[3] + 1) % 5)
    assert replay(changed(foreign, 0, token=other)).verdict is Verdict.FAULT


def test_a_declared_lossy_verifier_has_no_replay(clean):
    lossy = replace(clean.requests[1].trace.header, lossless=False)
    assert replay(changed(clean, 1, header=lossy)).verdict is Verdict.NOT_RUN


def test_penalties_and_masks_are_replayed_with_the_history():
    sampling = SamplingParams(temperature=0.8, max_new_tokens=20, seed=3)
    one = arm(world(4), Setup(sampling=sampling), 2)
    header = one.requests[1].trace.header
    penalised = replace(header, sampling=replace(sampling, repetition_penalty=1.2))
    assert replay(changed(one, 1, header=penalised)).verdict is Verdict.FAULT


def test_the_bound_is_clopper_pearson_on_recomputed_decisions(clean):
    result = replay(clean)
    assert result.bound == pytest.approx(1 - 0.01 ** (1 / result.n))
    assert result.effect == 0.0


def test_a_digest_that_is_not_its_row_s_is_named_with_its_step(clean):
    trace = clean.requests[1].trace
    wrong = changed(clean, 1, logits_digest=put(trace.logits_digest, 10, trace.logits_digest[10] ^ np.uint64(1)))
    step = int(np.searchsorted(np.cumsum(trace.n_emitted), 10, side="right"))
    (finding,) = replay(wrong).findings
    assert (finding.request, finding.step) == (clean.requests[1].request_id, step)
    assert "does not have the recorded digest" in finding.message


def test_a_changed_bit_of_a_row_shows_where_it_decides_nothing(clean):
    """The last bit of the smallest logit moves p by less than the replay's tolerance."""
    logits = clean.requests[1].trace.logits.copy()
    logits.view(np.uint32)[10, int(logits[10].argmin())] ^= 1
    (finding,) = replay(changed(clean, 1, logits=logits)).findings
    assert "does not have the recorded digest" in finding.message


def test_absent_digests_and_part_of_them_are_a_fault(clean):
    found = clean.requests[1].trace.logits_digest
    assert replay(changed(clean, 1, logits_digest=found[:0])).verdict is Verdict.FAULT
    assert replay(changed(clean, 1, logits_digest=found[:-1])).verdict is Verdict.FAULT
