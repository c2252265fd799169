"""A tiny target of random weights, tiny heads for it, and loops over both.

Everything is float64, so that tokens do not depend on how rows are batched.
"""

import functools
import math

import numpy as np
import torch

from engine import proposers, verify
from engine.core.types import DraftRule
from engine.decode.loop import Loop, LoopOptions
from engine.heads.checkpoint import HeadCheckpoint
from engine.heads.formats import eagle, eagle3
from engine.heads.formats.dflash import dflash_slots
from engine.heads.formats.mtp import BEFORE_NORM, deepseek_slots, mimo_slots
from engine.models.decoder.lean import LeanModel
from engine.models.interface import WantedOutputs, chain_placement, to_numpy
from engine.models.lean_weights import expected_shapes, read_config
from engine.proposers.interface import PlainProposer, ProposerParts, TargetSide
from engine.sampling.draw import draw
from engine.sampling.transforms import transform
from tests.engine.build import spell
from tests.support.lean_tensors import build_weights

CAPACITY = 96


def document(vocabulary=8, **changes):
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    } | changes


def config_of(vocabulary=8, **changes):
    return read_config(document(vocabulary, **changes), "tiny")


def random_tensor(name, shape, generator):
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return 1 + 0.3 * noise if "norm" in name else noise / math.sqrt(shape[-1])


def random_tensors(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: random_tensor(name, shape, generator) for name, shape in shapes.items()}


@functools.cache
def tiny_target(vocabulary=8, eos_ids=()):
    config = config_of(vocabulary)
    weights = build_weights(config, random_tensors(expected_shapes(config), 5), torch.float64)
    return LeanModel(config, weights, eos_ids)


@functools.cache
def mtp_head(vocabulary=8, modules=1):
    shapes = {slot.name: slot.shape for slot in deepseek_slots(config_of(vocabulary), modules) if not slot.optional}
    tensors = random_tensors(shapes, 6)
    settings = {"modules": modules, "hidden": 16, "vocabulary": vocabulary}
    return HeadCheckpoint("deepseek_mtp", "mtp", document(vocabulary), tensors, settings)


@functools.cache
def mimo_head(vocabulary=8):
    """A module with biases and an output matrix of its own that reads states from before the final norm."""
    config = document(vocabulary, model_type="qwen2")
    shapes = {slot.name: slot.shape for slot in mimo_slots(read_config(config, "tiny"), 1)}
    tensors = random_tensors(shapes | {"modules.0.head": (vocabulary, 16)}, 23)
    settings = {"modules": 1, "hidden": 16, "vocabulary": vocabulary, BEFORE_NORM: True}
    return HeadCheckpoint("mimo_mtp", "mtp", config, tensors, settings)


@functools.cache
def medusa_head(vocabulary=8, heads=3, known=None):
    """With `known`, heads that know the first so many tokens only."""
    shapes = {}
    for h in range(heads):
        shapes |= {f"block.{h}.0.weight": (16, 16), f"block.{h}.0.bias": (16,)}
        shapes[f"head.{h}.weight"] = (min(known or vocabulary, vocabulary), 16)
    tensors = random_tensors(shapes, 12)
    if known and known < vocabulary:
        tensors["token_map"] = torch.arange(known)
    settings = {"heads": heads, "layers": 1, "hidden": 16, "vocabulary": vocabulary, "logit_scale": 1.0}
    return HeadCheckpoint("medusa", "medusa", {}, tensors, settings)


@functools.cache
def mlp_speculator_head(vocabulary=8, stages=3):
    shapes = {}
    for i in range(stages):
        shapes |= {f"emb.{i}": (vocabulary, 12), f"proj.{i}": (12, 12 if i else 16), f"head.{i}": (vocabulary, 12)}
        shapes |= {f"norm.{i}.weight": (12,), f"norm.{i}.bias": (12,)}
    settings = {"stages": stages, "hidden": 16, "inner": 12, "vocabulary": vocabulary, "scale_input": True}
    return HeadCheckpoint("mlp_speculator", "mlp_speculator", {}, random_tensors(shapes, 17), settings)


@functools.cache
def eagle_head(vocabulary=8):
    """An EAGLE-1 head."""
    config = config_of(vocabulary, num_hidden_layers=1)
    shapes = {slot.name: slot.shape for slot in eagle.slots(config, bias=True) if not slot.optional}
    settings = {"hidden": 16, "vocabulary": vocabulary}
    tensors = random_tensors(shapes, 9)
    return HeadCheckpoint("eagle", "eagle", document(vocabulary, num_hidden_layers=1), tensors, settings)


@functools.cache
def eagle3_head(vocabulary=8, known=None):
    """An EAGLE-3 head that knows `known` tokens, those of odd ids first."""
    changes = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "draft_vocab_size": min(known or vocabulary, vocabulary)}
    config = document(vocabulary, num_hidden_layers=1, **changes)
    said = eagle3.announced(config, "tiny", norm_before_residual=False)
    optional = ("d2t", "t2d", "embedding")
    shapes = {slot.name: slot.shape for slot in eagle3.slots(said) if slot.name not in optional}
    tensors = random_tensors(shapes, 21)
    if said.draft_vocabulary < vocabulary:
        ids = [*range(1, vocabulary, 2), *range(0, vocabulary, 2)][: said.draft_vocabulary]
        tensors["target_ids"] = torch.tensor(sorted(ids))
    return HeadCheckpoint("eagle3", "eagle3", config, tensors, said.settings())


@functools.cache
def dflash_head(vocabulary=8, block=6):
    config = document(vocabulary, model_type="qwen3", head_dim=4)
    shapes = {slot.name: slot.shape for slot in dflash_slots(read_config(config, "tiny"), 2)}
    settings = {"hidden": 16, "vocabulary": vocabulary, "block": block, "mask": 0, "states": (1, 2), "target_layers": 2}
    return HeadCheckpoint("dflash", "dflash", config, random_tensors(shapes, 12), settings)


HEADS = {
    "eagle": ("eagle", eagle_head),
    "eagle-tree": ("eagle", eagle_head),
    "eagle2": ("eagle2", eagle_head),
    "eagle2-eagle3": ("eagle2", functools.partial(eagle3_head, known=6)),
    "eagle3": ("eagle3", functools.partial(eagle3_head, known=6)),
    "eagle3-dynamic": ("eagle3", eagle3_head),
    "ddtree": ("ddtree", dflash_head),
    "dflash": ("dflash", dflash_head),
    "mtp": ("mtp", mtp_head),
    "mtp-mimo": ("mtp", mimo_head),
    "mtp-2-modules": ("mtp", functools.partial(mtp_head, modules=2)),
    "medusa": ("medusa", medusa_head),
    "medusa-soft": ("medusa", functools.partial(medusa_head, known=6)),
    "medusa-tree": ("medusa", medusa_head),
    "mlp_speculator": ("mlp_speculator", mlp_speculator_head),
    "mlp_speculator-soft": ("mlp_speculator", mlp_speculator_head),
}
"""By case: the proposer, and its head for a vocabulary. A case is tested by itself."""
OPTIONS = {
    "eagle-tree": {"widths": "2,2,1"},
    "eagle2": {"top_k": 3, "depth": 3},
    "eagle2-eagle3": {"top_k": 3, "depth": 3},
    "eagle3-dynamic": {"dynamic": True, "top_k": 2, "depth": 4},
    "medusa-soft": {"draw": "soft"},
    "medusa-tree": {"tree": "3,2,1"},
    "mlp_speculator-soft": {"draw": "soft"},
}
"""By case, what its proposer is built with; others run with their defaults."""


def made(case, rule=DraftRule.INDEPENDENT, rows=1, capacity=CAPACITY, vocabulary=8, eos_ids=(), options=None):
    """The case's proposer, and the side of the target that it was built with."""
    kind, head = HEADS[case]
    target = tiny_target(vocabulary, eos_ids)
    side = TargetSide(target, target.new_cache(rows, capacity))
    parts = ProposerParts(
        rows,
        capacity,
        rule,
        draw,
        eos_ids,
        options=OPTIONS.get(case, {}) | (options or {}),
        target=side,
        head=head(vocabulary),
    )
    return proposers.build(kind, parts), side


def make_loop(setup, capacity=CAPACITY):
    """A loop over the tiny target; `setup.proposer` is a case of `HEADS`, or None."""
    verifier = verify.load(setup.protocol)
    target = tiny_target(setup.vocabulary, setup.eos_ids)
    options = LoopOptions(setup.rows, setup.gamma, capacity, setup.level)
    if setup.proposer is None:
        return Loop(target, PlainProposer(), verifier, spell, options)
    rule = verifier.facts.draft_rule
    proposer, side = made(
        setup.proposer, rule, setup.rows, capacity, setup.vocabulary, setup.eos_ids, dict(setup.options)
    )
    return Loop(target, proposer, verifier, spell, options, side.cache)


def generate(setup, wanted):
    return {each.request.id: each for each in make_loop(setup).run(wanted)}


def whole_forward(target, tokens):
    """Logits [T, V] and the last hidden states [T, H] of a sequence, in a cache of its own."""
    last = target.config.layers
    cache = target.new_cache(1, len(tokens))
    forward = target.forward(cache, chain_placement([list(tokens)], [0], cache.trash), WantedOutputs(hidden=(last,)))
    return forward.logits[0], forward.hidden[last][0]


def target_law(setup, params, prompt):
    """The law of all outputs by the definition: products of p along every sequence."""
    target, law = tiny_target(setup.vocabulary, setup.eos_ids), {}

    def extend(told, probability):
        if len(told) == params.max_new_tokens or (told and told[-1] in setup.eos_ids):
            law[told] = probability
            return
        history = [*prompt, *told]
        logits = to_numpy(whole_forward(target, history)[0][-1])
        p = transform(logits, history, len(prompt), params, setup.eos_ids).p
        for token in np.flatnonzero(p):
            extend((*told, int(token)), probability * p[token])

    extend((), 1.0)
    return law
