"""Proposers with heads over the tiny target: the cases, their rules and their requests."""

from dataclasses import replace

from engine import proposers, verify
from engine.core.types import DraftRule, Protocol, Request, SamplingParams
from engine.models.interface import WantedOutputs, chain_placement
from engine.proposers.interface import Context, ProposerParts, TargetOutputs, TargetSide
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness
from tests.engine.build import requests
from tests.engine.heads.tiny import HEADS, made, tiny_target

CASES = sorted(case for case, (kind, _) in HEADS.items() if kind in proposers.REGISTRY)
KINDS = sorted({HEADS[case][0] for case in CASES})
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=24, seed=3)
SHAPED = replace(SAMPLED, top_p=0.9, repetition_penalty=1.2, min_tokens=4)


def protocols(case):
    for protocol in Protocol:
        facts = verify.load(protocol).facts
        if facts.lossless and (facts.trees or made(case, facts.draft_rule)[0].facts.shape == "chain"):
            yield protocol


PAIRS = [(case, protocol) for case in CASES for protocol in protocols(case)]
COMPARING = [pair for pair in PAIRS if pair[1] in (Protocol.GREEDY, Protocol.GUMBEL)]
SAMPLING = [pair for pair in PAIRS if pair[1] is not Protocol.GREEDY]


def sampling_for(protocol, sampled=SAMPLED):
    return replace(sampled, temperature=0.0) if protocol is Protocol.GREEDY else sampled


def ragged(count, sampling):
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + 7 * i % 24))
        for i, each in enumerate(requests(count, sampling))
    ]


def outputs(generations):
    return {name: (each.tokens, each.finish_reason) for name, each in generations.items()}


def started(case, rule, prompt, budget=4, sampling=SAMPLED, proposer=None):
    """The first proposal for a prompt, by a new proposer unless one is given."""
    side = None
    if proposer is None:
        proposer, side = made(case, rule)
    target = tiny_target()
    cache = side.cache if side else target.new_cache(1, 64)
    layers = proposer.facts.hidden
    forward = target.forward(cache, chain_placement([list(prompt)], [0], cache.trash), WantedOutputs(False, layers))
    request = Request("r", prompt, sampling)
    read = TargetOutputs({layer: forward.hidden[layer][0, :-1] for layer in layers})
    context = Context(0, request, list(prompt), budget, Randomness(3, 4), read=read)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    return proposal


def parts_with(head, model=None, options=None):
    model = model or tiny_target()
    side = TargetSide(model, model.new_cache(1, 16))
    return ProposerParts(1, 16, DraftRule.GREEDY, draw, (), options=options or {}, target=side, head=head)
