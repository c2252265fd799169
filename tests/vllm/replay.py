"""Our heads, given what vLLM's module was given, call by call: [rows, V] logits of each."""

import torch

from engine.core.types import DraftRule
from engine.heads.loading import load_head
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.lean_weights import read_config
from engine.proposers.interface import ProposerParts, TargetSide
from engine.proposers.trained.feature_head import feature_head
from engine.proposers.trained.fitted_head import fitted_head
from engine.proposers.trained.medusa import MedusaHeads
from engine.proposers.trained.mtp import MtpModule
from engine.sampling.draw import draw

CAPACITY = 640
OUTSIDE = -1e29
"""Below it stands what a head does not know."""


def fitted(case, target):
    parts = parts_of(case, target)
    return fitted_head(case.kind, parts)


def parts_of(case, target):
    side = TargetSide(target, target.new_cache(1, 2))
    return ProposerParts(1, CAPACITY, DraftRule.GREEDY, draw, (), target=side, head=load_head(str(case.head)).head)


def placed(read, cache):
    tokens, positions = read["input_ids"].tolist(), read["positions"].tolist()
    assert positions == list(range(positions[0], positions[0] + len(positions)))
    return chain_placement([tokens], [positions[0]], cache.trash)


class Eagle:
    """The cache is vLLM's in small: what a later call places at a position takes the place of what was there."""

    def __init__(self, case, target):
        self.head = feature_head(case.kind, parts_of(case, target), (case.kind,))
        self.cache = self.head.decoder.new_cache(1, CAPACITY)

    def logits(self, read):
        placement, states = placed(read, self.cache), read["hidden_states"]
        inputs = self.head.inputs(placement.tokens[0], states)
        return self.head.logits(self.head.decoder.forward(self.cache, placement, inputs))


class Mtp:
    def __init__(self, case, target):
        found = fitted(case, target)
        own = {name.removeprefix("modules.0."): each for name, each in found.head.tensors.items()}
        self.module = MtpModule(read_config(found.head.config, "head"), own, target.weights)
        self.cache = self.module.new_cache(1, CAPACITY)

    def logits(self, read):
        placement = placed(read, self.cache)
        return self.module.logits(self.module.forward(self.cache, placement, read["hidden_states"]))


class Medusa:
    def __init__(self, case, target):
        self.heads = MedusaHeads(fitted(case, target))

    def logits(self, read):
        return self.heads.logits(read["arg0"], self.heads.count).flatten(0, 1)


HEADS = {"eagle": Eagle, "eagle3": Eagle, "medusa": Medusa, "mtp": Mtp}


def theirs(call):
    """[rows, V]; Medusa's heads of one state one after the other."""
    said = call["logits"]
    return torch.stack(said, 1).flatten(0, 1) if isinstance(said, list) else said


def difference(ours, said):
    """The largest of one call, over the tokens that the head knows; both must know the same."""
    known = ours > OUTSIDE
    assert torch.equal(known, said > OUTSIDE)
    return (ours - said)[known].abs().max().item()


def hidden(target, tokens, layers):
    """By layer [T, H] of our target, read in one forward."""
    cache = target.new_cache(1, len(tokens))
    forward = target.forward(cache, chain_placement([tokens], [0], cache.trash), WantedOutputs(False, layers))
    return {layer: forward.hidden[layer][0] for layer in layers}
