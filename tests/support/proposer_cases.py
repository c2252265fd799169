"""Every registered proposer over scripted models: the cases, their rules and their requests."""

import contextlib
from dataclasses import replace

from engine import proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.types import DraftRule, Protocol, QKind, SamplingParams
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import ProposerParts, TargetSide
from engine.sampling.draw import draw
from tests.engine.build import Setup, requests, target_script
from tests.engine.heads import tiny

HEADS = {case[0] for case in tiny.HEADS.values()}
"""Kinds that draft with the target's hidden states, which scripted models lack; tests/engine/heads tests them."""
REGISTERED = sorted(set(proposers.REGISTRY) - HEADS)
OPTIONS = {"ngram": {"min_ngram": 1}, "suffix": {"max_spec_factor": 4.0}, "layer_skip": {"skip_ffn": "1"}}
"""Settings under which a proposer drafts often on eight tokens; others run with their defaults."""
GREEDY = SamplingParams(max_new_tokens=30)
SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=30, seed=3)
SHAPED = replace(
    SAMPLED, top_k=6, top_p=0.9, repetition_penalty=1.2, bad_words=((3,), (1, 2)), min_tokens=4, stop_token_ids=(6,)
)


def built(kind, options, rule, rows=1):
    script = target_script(Setup())
    draft = ScriptedModel(script, 8, partial=script)
    target = TargetSide(draft, draft.new_cache(rows, 64))
    return proposers.build(kind, ProposerParts(rows, 64, rule, draw, (), draft, options, (draft,), target))


def cases_of(kind):
    """Yield a proposer with its default options and with each flag inverted, because a flag may change drafting."""
    given = OPTIONS.get(kind, {})
    yield kind, (kind, given)
    for name, value in built(kind, given, DraftRule.INDEPENDENT).facts.options.items():
        if isinstance(value, bool):
            yield f"{kind}-{name}", (kind, given | {name: not value})


def served(kind, options):
    with contextlib.suppress(InvalidRequest):
        return bool(built(kind, options, DraftRule.INDEPENDENT))
    return False


WORDED = {
    "specinfer-without_replacement": ("specinfer", {"siblings": "without_replacement"}),
    "draft_model-token_cost": ("draft_model", {"token_cost": 0.1}),
    "ngram-token_cost": ("ngram", OPTIONS["ngram"] | {"token_cost": 0.05}),
}
"""Options other than flags that change drafting."""
NAMED = {name: case for kind in REGISTERED for name, case in cases_of(kind)} | WORDED
CASES = {name: case for name, case in NAMED.items() if served(*case)}
"""By name: the proposer and its options."""
REFUSED = {name: case for name, case in NAMED.items() if name not in CASES}
"""Cases that need more than a scripted model; the proposer's own tests cover them."""
KINDS = sorted(CASES)


def setup_of(case, **changes):
    kind, options = CASES[case]
    return Setup(kind, options=options, **changes)


def made(case, rule, rows=1):
    return built(*CASES[case], rule, rows)


def protocols(kind):
    """The rules that understand the proposer's shape and q."""
    for protocol in Protocol:
        facts = verify.load(protocol).facts
        proposer = made(kind, facts.draft_rule).facts
        known = proposer.q_kind is not QKind.NONE or protocol is not Protocol.CHAIN
        if facts.lossless and known and (facts.trees or proposer.shape == "chain"):
            yield protocol


PAIRS = [(kind, protocol) for kind in KINDS for protocol in protocols(kind)]


def sampling_for(protocol, sampled=SAMPLED):
    return replace(sampled, temperature=0.0) if protocol is Protocol.GREEDY else sampled


def outputs(generations):
    return {name: (each.tokens, each.finish_reason) for name, each in generations.items()}


def ragged(count, sampling):
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + 7 * i % 30))
        for i, each in enumerate(requests(count, sampling))
    ]
