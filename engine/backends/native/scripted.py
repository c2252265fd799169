"""The native loop over scripted models: exact, instant, no weights.

For testing suites, policies and checks: `scripted:SEED` is a random Markov source over a small alphabet; every other
model named in the suite blends its own seed with the target's, so that it drafts usefully. Text is letters.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine, Prompt, PromptTokenizer
from engine.backends.native import ALPHABET
from engine.backends.native.backend import NativeEngine
from engine.constraints.interface import TokenSpelling
from engine.core.errors import InvalidRequest, ModelError
from engine.models.passes.reference_pass import ScriptedReference
from engine.models.probe.choose import ModelWithNumerics, scripted
from engine.models.scripted import ScriptedModel, blended_script, table_script

VOCABULARY = len(ALPHABET)
LIKENESS = 0.6
"""Share of the target's logits in a scripted draft's."""

TEMPLATE: Final[Mapping[str, Any]] = {
    "start_anchor": "_",
    "fields": {
        "content": {},
        "tool_calls": {
            "open": list("aeiou"),
            "close": list(" ,.?!_"),
            "repeats": True,
            "content": "text",
            "transform": {"function": {"name": "letters", "arguments": {"text": "{content}"}}},
        },
    },
}
"""A call begins with a vowel and ends with a sign, so that a random text holds many that several steps write."""
TOOLS: Final[tuple[Mapping[str, Any], ...]] = (
    {"name": "letters", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
)
"""The tool that each of them names."""


class ScriptedBackend:
    """Scripted models by the suite's names."""

    def __init__(self, seeds: Mapping[str, int]) -> None:
        self._seeds = seeds
        self._script = target = table_script(seeds["target"], VOCABULARY)
        self._models = {
            name: ScriptedModel(
                target if name == "target" else blended_script(table_script(seed, VOCABULARY), target, LIKENESS),
                VOCABULARY,
                facts={"loader": "scripted", "seed": str(seed), "likeness": 1.0 if name == "target" else LIKENESS},
            )
            for name, seed in seeds.items()
        }

    def models(self) -> tuple[ModelFacts, ...]:
        """A script's digest is that of its definition."""
        return tuple(self._facts(name, seed) for name, seed in self._seeds.items())

    def _facts(self, name: str, seed: int) -> ModelFacts:
        manifest = dict(self._models[name].facts)
        digest = hashlib.sha256(repr(sorted(manifest.items())).encode()).hexdigest()
        return ModelFacts(name, f"scripted:{seed}", None, digest, None, manifest)

    def arm(self, plan: EngineSpec) -> Engine:
        """A native backend over the scripts."""
        unknown = [name for name in plan.drafts if name not in self._models]
        if unknown:
            raise InvalidRequest(f"no model named {unknown[0]!r}; there are: {', '.join(self._models)}")
        drafts = [ModelWithNumerics(self._models[name], scripted()) for name in plan.drafts]
        facts = {"code": "the script", "dtype": "float64", **self._models["target"].facts}
        reference = ScriptedReference(self._script, facts)
        target = ModelWithNumerics(self._models["target"], scripted())
        return NativeEngine(
            target, drafts, PromptTokenizer(_encode, _decode, TEMPLATE, _spell), plan, reference=lambda: reference
        )


def _encode(prompt: Prompt) -> list[int]:
    text = (
        prompt.text
        if prompt.text is not None
        else " ".join(message.get("content") or "" for message in prompt.messages)
    )
    return _encode_text(text.lower()) or [0]


def _encode_text(text: str) -> list[int]:
    return [max(0, ALPHABET.find(letter)) for letter in text]


def _decode(tokens: Sequence[int]) -> str:
    return "".join(ALPHABET[token] for token in tokens)


def _spell(vocabulary: int) -> TokenSpelling:
    return TokenSpelling(tuple(letter.encode() for letter in ALPHABET[:vocabulary]), _encode_text)


def open_models(models: Mapping[str, ModelSource]) -> ScriptedBackend:
    """Scripts for `scripted:SEED` sources. Raises ModelError: a source of another form."""
    return ScriptedBackend({name: _seed(model.source) for name, model in models.items()})


def _seed(source: str) -> int:
    kind, _, seed = source.partition(":")
    if kind != "scripted" or not seed.isdecimal():
        raise ModelError(f"{source}: a scripted model's source is scripted:SEED with a whole number")
    return int(seed)
