"""The check bitwise: on synthetic evidence, and on real rows of a mode that keeps the promise and one that does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from audit.checks import bitwise
from audit.checks.base.interface import evaluate
from audit.checks.bitwise import CHECK
from audit.evidence.pairing import Pair
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import LACKING, Verdict
from audit.stats.binomial import upper_bound
from engine import verify
from engine.core.types import DraftRule, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.numerics import load
from engine.models.passes.rereading import reread, rereader
from engine.models.probe.choose import ModelWithNumerics, NumericsFacts
from engine.proposers.copying.ngram import NgramProposer
from engine.proposers.interface import PlainProposer, ProposerParts
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of
from tests.audit.checks.simulator import GREEDY, Setup, arm, changed, put, record, world
from tests.support.lean_tensors import from_tensors

TILED = {"mode": "tiled", "requested": "auto", "promises": "tree", "probe": {}, "reason": None}
FIXED = TILED | {"mode": "fixed", "promises": "chain", "reason": "tiled fails attention (row 3)"}
FAST = TILED | {"mode": "fast", "promises": "none", "reason": "fixed fails products (row 1)"}
REQUESTS = 6


def read_again(candidate):
    """The candidate's own rows as those that a reread gives."""
    return replace(candidate, name="candidate/reread", kind=ArmKind.REREAD)


def seen(candidate, baseline, clean=None):
    """Evidence with a reread of the candidate's text; `clean` is the candidate without what a test broke."""
    return Evidence(candidate, baseline, None, {ArmKind.REREAD: read_again(clean or candidate)})


def reporting(record, numerics=TILED, shape=None):
    effective = {} if numerics is None else {"numerics": numerics}
    document = effective if shape is None else effective | {"proposer_shape": shape}
    return replace(record, effective=Effective.from_json(document))


@pytest.fixture(scope="module", params=[Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL])
def arms(request):
    sampling = {"sampling": GREEDY} if request.param is Protocol.GREEDY else {}
    plain = Setup(Protocol.GREEDY if sampling else Protocol.GUMBEL, "none", **sampling)
    draft = Setup(request.param, "one_hot" if sampling else "soft", **sampling)
    target = world(6)
    return seen(reporting(arm(target, draft, REQUESTS)), reporting(arm(target, plain, REQUESTS, kind=ArmKind.BASELINE)))


def judge(evidence, **params):
    return evaluate(CHECK, evidence, {"min_positions": 6, **params})


def flipped(arm, request, index):
    digest = arm.requests[request].trace.logits_digest
    return changed(arm, request, logits_digest=put(digest, index, digest[index] ^ np.uint64(1)))


def emitted(evidence):
    return sum(len(each.tokens) for each in evidence.candidate.requests)


def until_parted(evidence):
    """Positions up to and including the first token that differs from the baseline's."""
    total = 0
    for ours, theirs in zip(evidence.candidate.requests, evidence.baseline.requests, strict=True):
        same = [a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True)]
        total += same.index(False) + 1 if False in same else len(same)
    return total


def test_equal_rows_are_certified_whatever_the_rule(arms):
    result = judge(arms)
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.n == emitted(arms) == 64 * REQUESTS
    assert f"{result.n} positions of {REQUESTS} requests, each read again" in result.summary
    assert result.details["baseline_positions"] == until_parted(arms) <= result.n
    assert (result.statistic, result.effect) == (0.0, 0.0)
    assert result.bound == pytest.approx(1000 * upper_bound(0, result.n))
    assert "per 1000" in CHECK.effect  # the unit in which tables show the bound
    assert (result.details["mode"], result.details["promises"]) == ("tiled", "tree")


@pytest.mark.parametrize("index", [0, 40, 63])
def test_one_differing_row_is_a_fault_that_names_its_place(arms, index):
    """Wherever it is: a sampled arm has parted from its baseline long before the last token."""
    broken = replace(arms, candidate=flipped(arms.candidate, 2, index))
    result = judge(broken)
    assert result.verdict is Verdict.FAULT
    (finding,) = result.findings
    prompt = arms.candidate.requests[2].trace.header.prompt
    assert finding.request == arms.candidate.requests[2].request_id
    assert f"position {len(prompt) + index} (token {index})" in finding.message
    assert "0 apart in total variation" in finding.message
    assert result.statistic == 1.0
    assert result.effect == pytest.approx(1000 / result.n)
    assert result.bound == pytest.approx(1000 * upper_bound(1, result.n))


def test_every_token_that_was_read_again_is_examined(arms):
    missing = replace(arms.companions[ArmKind.REREAD], requests=arms.companions[ArmKind.REREAD].requests[1:])
    marks = CHECK.examines(replace(arms, companions={ArmKind.REREAD: missing}))
    counts = [int(marks(each).sum()) for each in arms.candidate.requests]
    assert counts == [0, *[64] * (REQUESTS - 1)]


@pytest.fixture(scope="module")
def greedy():
    target = world(6)
    plain, draft = Setup(Protocol.GREEDY, "none", sampling=GREEDY), Setup(Protocol.GREEDY, "one_hot", sampling=GREEDY)
    return seen(reporting(arm(target, draft, REQUESTS)), reporting(arm(target, plain, REQUESTS, kind=ArmKind.BASELINE)))


@pytest.mark.parametrize("index", [0, 1, 17, 63])
def test_the_step_is_the_one_that_emitted_the_token(greedy, index):
    (finding,) = judge(replace(greedy, candidate=flipped(greedy.candidate, 1, index))).findings
    ends = np.cumsum(greedy.candidate.requests[1].trace.n_emitted)
    assert finding.step == sum(end <= index for end in ends)


def test_rows_after_the_first_differing_token_are_not_compared_with_the_baseline(greedy):
    """Token 20 of request 0 is another one: its row counts, those after it follow another text."""
    trace = greedy.candidate.requests[0].trace
    other = put(trace.token, 20, (trace.token[20] + 1) % 16)
    digest = trace.logits_digest.copy()
    digest[21:] ^= np.uint64(1)
    parted = changed(greedy.candidate, 0, token=other, logits_digest=digest)
    parted = replace(parted, requests=(replace(parted.requests[0], tokens=tuple(other)), *parted.requests[1:]))
    result = judge(seen(parted, greedy.baseline))
    assert result.verdict is Verdict.CERTIFIED
    assert (result.n, result.details["baseline_positions"]) == (64 * REQUESTS, 64 * REQUESTS - 43)
    broken = flipped(parted, 0, 20)
    assert judge(seen(broken, greedy.baseline)).verdict is Verdict.FAULT


def test_what_candidate_and_reread_share_shows_against_the_baseline(greedy):
    shared = flipped(greedy.candidate, 3, 9)
    result = judge(seen(shared, greedy.baseline))
    assert (result.verdict, result.statistic, result.n) == (Verdict.FAULT, 1.0, 64 * REQUESTS)
    (finding,) = result.findings
    assert "the baseline's" in finding.message
    again = judge(seen(shared, greedy.baseline, clean=greedy.candidate))
    assert again.statistic == 1.0, "a row that differs from both counts once"
    assert "read again it is" in again.findings[0].message


def test_findings_are_capped_but_all_are_counted(greedy):
    digest = greedy.candidate.requests[0].trace.logits_digest
    broken = changed(greedy.candidate, 0, logits_digest=digest ^ np.uint64(1))
    result = judge(replace(greedy, candidate=broken))
    assert (len(result.findings), result.statistic, result.details["pairs_differing"]) == (20, 64.0, 1)


def test_what_is_too_little_is_inconclusive(greedy):
    few = judge(greedy, min_positions=64 * REQUESTS + 1)
    assert few.verdict is Verdict.INCONCLUSIVE
    assert "fewer than 385 positions" in few.summary
    assert judge(greedy, min_positions=64 * REQUESTS).verdict is Verdict.CERTIFIED
    missing = replace(greedy.baseline, requests=greedy.baseline.requests[1:])
    unpaired = judge(replace(greedy, baseline=missing))
    assert unpaired.verdict is Verdict.INCONCLUSIVE
    assert "1 requests are in one arm only, first case-0#0" in unpaired.summary
    reread = greedy.companions[ArmKind.REREAD]
    unread = judge(replace(greedy, companions={ArmKind.REREAD: replace(reread, requests=reread.requests[:-1])}))
    assert (unread.verdict, unread.n) == (Verdict.INCONCLUSIVE, 64 * REQUESTS), "the baseline has the rest"
    assert "1 requests were not read again, first case-5#0" in unread.summary
    broken = replace(greedy, candidate=flipped(greedy.candidate, 2, 0), baseline=missing)
    assert judge(broken).verdict is Verdict.FAULT, "what is there can still show a fault"


def test_nothing_to_compare_is_inconclusive(greedy):
    empty = replace(greedy.candidate, requests=()), replace(greedy.baseline, requests=())
    assert judge(seen(*empty)).verdict is Verdict.INCONCLUSIVE


def test_rows_without_digests_or_of_other_prompts_are_inconclusive(greedy):
    old = changed(greedy.baseline, 3, logits_digest=np.empty(0, np.uint64))
    result = judge(replace(greedy, baseline=old))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "has no digests" in result.summary
    header = replace(greedy.baseline.requests[0].trace.header, prompt=(1, 3))
    other = judge(replace(greedy, baseline=changed(greedy.baseline, 0, header=header)))
    assert other.verdict is Verdict.INCONCLUSIVE
    assert "different prompts" in other.summary
    tokens = (*greedy.candidate.requests[0].tokens[:-1], 1 - greedy.candidate.requests[0].tokens[-1] % 2)
    wrong = replace(greedy.candidate, requests=(replace(greedy.candidate.requests[0], tokens=tokens),))
    result = judge(seen(greedy.candidate, None, clean=wrong))
    assert (result.verdict, "other tokens were read again" in result.summary) == (Verdict.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("ours", "theirs", "shape", "said"),
    [
        (FAST, FAST, "chain", "numerics fast promises none, a chain proposer needs chain: fixed fails products"),
        (FIXED, FIXED, "tree", "numerics fixed promises chain, a tree proposer needs tree: tiled fails attention"),
        (None, None, None, "does not report numerics"),
        (TILED, None, None, "numerics tiled, its baseline with None"),
        (TILED, FIXED, "chain", "numerics tiled, its baseline with fixed"),
        (TILED | {"promises": "most"}, TILED | {"promises": "most"}, "chain", "promises most"),
    ],
)
def test_bits_that_nobody_promised_are_not_judged(greedy, ours, theirs, shape, said):
    broken = flipped(greedy.candidate, 0, 0)
    for candidate in (greedy.candidate, broken):
        result = judge(seen(reporting(candidate, ours, shape), reporting(greedy.baseline, theirs)))
        assert result.verdict is Verdict.NOT_RUN
        assert said in result.summary


@pytest.mark.parametrize(
    ("numerics", "shape"),
    [
        (FIXED, "chain"),
        (FIXED, "none"),
        (FIXED, None),
        (TILED, "tree"),
        (TILED | {"mode": "exact", "promises": "everywhere"}, "tree"),
    ],
)
def test_bits_that_are_promised_are_judged(greedy, numerics, shape):
    baseline = reporting(greedy.baseline, numerics)
    sound = reporting(greedy.candidate, numerics, shape)
    assert judge(seen(sound, baseline)).verdict is Verdict.CERTIFIED
    assert judge(seen(flipped(sound, 0, 0), baseline, clean=sound)).verdict is Verdict.FAULT


@pytest.mark.parametrize("numerics", [FAST, None])
def test_force_compares_where_nothing_is_promised(greedy, numerics):
    candidate, baseline = reporting(greedy.candidate, numerics), reporting(greedy.baseline, numerics)
    assert judge(seen(candidate, baseline), force=True).verdict is Verdict.CERTIFIED
    assert judge(seen(flipped(candidate, 0, 0), baseline, clean=candidate), force=True).verdict is Verdict.FAULT
    other = judge(seen(candidate, reporting(greedy.baseline, FIXED)), force=True)
    assert other.verdict is Verdict.NOT_RUN, "two modes have other bits by nature"


def test_without_a_reread_or_below_L1_the_check_lacks_evidence(greedy):
    for evidence in (Evidence(greedy.candidate, greedy.baseline), Evidence(replace(greedy.candidate, level=Level.L0))):
        result = judge(evidence)
        assert (result.verdict, result.details) == (Verdict.NOT_RUN, {LACKING: True})


def test_the_baseline_is_not_needed(greedy):
    result = judge(replace(greedy, baseline=None))
    assert (result.verdict, result.n, result.details["baseline_positions"]) == (Verdict.CERTIFIED, 64 * REQUESTS, 0)


# real rows

VOCABULARY, HIDDEN, FFN, HEAD = 96, 64, 160, 16
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def lean(mode):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    tensors = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    shapes = {
        "self_attn.q_proj": (4 * HEAD, HIDDEN),
        "self_attn.k_proj": (2 * HEAD, HIDDEN),
        "self_attn.v_proj": (2 * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 4 * HEAD),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    for layer in range(2):
        place = f"model.layers.{layer}"
        tensors |= {f"{place}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        tensors |= {f"{place}.{name}.weight": torch.ones(HIDDEN) for name in NORMS}
    return from_tensors(CONFIG, tensors, torch.float32, numerics=load(mode))


NORMS = ("input_layernorm", "post_attention_layernorm")


def decoded(model, kind, proposer, rows):
    sampling = SamplingParams(temperature=1.0, max_new_tokens=40, seed=2)
    prompts = [tuple((7 * i + j * j) % 11 for j in range(6 + i)) for i in range(6)]
    wanted = [Request(f"case-{i}", prompt, sampling, stream_of(f"case-{i}")) for i, prompt in enumerate(prompts)]
    loop = Loop(model, proposer, verify.load(Protocol.GUMBEL), str, LoopOptions(rows, 4, 96, RecordLevel.SCALARS))
    traces = {each.request.id: decode(each.trace) for each in loop.run(wanted)}
    numerics = {"mode": model.numerics.name, "promises": model.numerics.promises.name.lower()}
    effective = Effective.from_json({"numerics": numerics, "proposer_shape": "chain"})
    return ArmRecord(kind.value, kind, Level.L1, effective, tuple(record(traces[each.id]) for each in wanted))


def read(model, candidate):
    facts = NumericsFacts(model.numerics.name, model.numerics.name, model.numerics.promises)
    reader, records = rereader(ModelWithNumerics(model, facts)), []
    for each in candidate.requests:
        header = replace(each.trace.header, protocol=Protocol.GUMBEL, proposer="given")
        request = Request(header.request, header.prompt, header.sampling, header.stream)
        trace = decode(reread(reader, request, each.tokens, header, str).trace)
        records.append(replace(each, trace=trace))
    return replace(candidate, name="reread", kind=ArmKind.REREAD, requests=tuple(records))


@pytest.fixture(scope="module", params=["tiled", "fast"])
def real(request):
    torch.set_num_threads(1)
    model = lean(request.param)
    drafting = NgramProposer.build(ProposerParts(6, 96, DraftRule.COUPLED, draw, (), None, {"min_ngram": 1}))
    candidate = decoded(model, ArmKind.CANDIDATE, drafting, rows=6)
    companions = {ArmKind.REREAD: read(model, candidate)}
    return request.param, Evidence(candidate, decoded(model, ArmKind.BASELINE, PlainProposer(), 2), None, companions)


def test_a_mode_that_promises_equal_bits_keeps_them_and_fast_does_not(real):
    mode, evidence = real
    drafted = sum(int(each.trace.n_drafted.sum()) for each in evidence.candidate.requests)
    assert drafted > 100, "there are drafts beside the rows"
    default, forced = (evaluate(CHECK, evidence, {"force": force}) for force in (False, True))
    assert forced.n == 40 * 6
    if mode == "tiled":
        assert default.verdict is forced.verdict is Verdict.CERTIFIED, default.summary
    else:
        assert default.verdict is Verdict.NOT_RUN
        assert forced.verdict is Verdict.FAULT
        assert forced.effect > 100, "rows of other batch shapes have other bits"


@pytest.mark.parametrize("name", ["logprob", "margin"])
def test_numbers_of_an_equal_row_are_compared_too(name):
    ours = arm(world(4), Setup(level=RecordLevel.TOPK), 3)
    column = getattr(ours.requests[1].trace, name)
    broken = changed(ours, 1, **{name: put(column, 2, column[2] - 0.01)})
    pair = Pair(broken.requests[1], ours.requests[1])
    (finding,) = bitwise._compare(pair, len(column), "read again they are").findings
    assert "of an equal row the log-probability and the lead are" in finding.message
    assert not bitwise._compare(Pair(ours.requests[1], ours.requests[1]), len(column), "").differing
