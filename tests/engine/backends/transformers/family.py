"""A tiny untrained family, and requests over it."""

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.core.types import Protocol, Request, SamplingParams
from engine.train import recipe, trainer
from engine.train.corpus import train_tokenizer
from tests.support.random_models import save

VOCABULARY = 300
TEXTS = ["the quick brown fox jumps over the lazy dog. " * 4, '{"name": "fox", "age": 12}\n' * 4]
OTHER_TEXTS = ["the lazy dog and the quick fox; the name of the fox. " * 4]
TARGET = recipe.ModelRecipe(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, context=96)
DRAFT = recipe.ModelRecipe(layers=1, hidden=16, heads=2, kv_heads=1, ffn=24, context=96)
SIZES = {"target": TARGET, "draft": DRAFT, "other": DRAFT}
PROMPTS = ("the quick the quick", "the lazy dog. the lazy", '{"name"', "over the quick brown fox")
GREEDY = SamplingParams(max_new_tokens=20)
SAMPLED = SamplingParams(temperature=0.5, max_new_tokens=20, seed=6)


def make(folder):
    """Untrained models; `other` has another tokenizer."""
    tokenizers = {"other": train_tokenizer(OTHER_TEXTS, VOCABULARY - 20)}
    shared = train_tokenizer(TEXTS, VOCABULARY)
    for seed, (name, size) in enumerate(SIZES.items()):
        tokenizer = tokenizers.get(name, shared)
        save(trainer.new_model(size, len(tokenizer), seed), tokenizer, folder / name)
    return folder


def workshop_of(home, *names):
    return open_backend("transformers", {name: ModelSource(name, base=home) for name in ("target", *names)})


OPTIONS = {"early_exit": {"assistant_early_exit": 1}}
MODELS = {"draft_model": "draft", "universal": "other"}


def plan(kind, protocol=Protocol.CHAIN, options=None, **changes):
    """An arm of the kind; `kind` None is plain."""
    if kind is None:
        return EngineSpec(protocol, **changes)
    return EngineSpec(protocol, kind, 4, MODELS.get(kind), OPTIONS.get(kind, {}) | (options or {}), **changes)


def requests(engine, sampling, prompts=PROMPTS):
    return [Request(text, engine.encode(Prompt(text=text)), sampling, i) for i, text in enumerate(prompts)]


def run(engine, sampling, prompts=PROMPTS):
    return list(engine.generate(requests(engine, sampling, prompts)))


def networks(backend):
    """The modules of target, draft and other."""
    return [backend._models[name].model.network for name in ("target", "draft", "other")]
