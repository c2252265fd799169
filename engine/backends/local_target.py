"""A target with local files that another engine runs.

It provides the data for which no engine needs to be trusted: digests of the files, the tokenizer,
and the teacher-forced pass of `engine.models.passes.reference_pass` over tokens that the engine
emitted. The weights are read only for that pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Prompt, PromptTokenizer
from engine.backends.second_decoding import SecondDecoding, decode_after
from engine.backends.tokenizer import tokens_by
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import FinishReason, Generation, Protocol, Request
from engine.models.files.folder import ModelFile
from engine.models.files.verified_files import pinned
from engine.models.loading import OpenedSource, load_model, load_tokenizer, open_source
from engine.models.passes.reference_pass import Reference, TransformersReference, anchored
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine, header_of
from engine.record.tool_calls import ResponseTemplate

REFERENCE_PASS: Final = "one forward over prompt and tokens; no cache, no draft, no batch"


class LocalTarget:
    """One target's files. Raises ModelError: the files are missing, or hold no model that runs on its own."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self._opened: OpenedSource = open_source(source.source, source.revision, source.base)
        with pinned(self._opened.folder) as folder:
            self._tokenizer = load_tokenizer(folder)
        self._reference: Reference | None = None
        self.eos_ids: tuple[int, ...] = self._opened.folder.eos_ids
        self.vocabulary = self._number("vocab_size")
        self.context = self._number("max_position_embeddings")

    def _number(self, key: str) -> int:
        value = self._opened.folder.config.get(key)
        if not isinstance(value, int):
            raise ModelError(f"{self._opened.folder.name('config.json')}: {key} is not a whole number; name a model")
        return value

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._opened.folder.path

    @property
    def tokens(self) -> PromptTokenizer:
        """The tokenizer. Raises ModelError: there is none."""
        if self._tokenizer is None:
            raise ModelError(f"{self._source.source}: the target has no tokenizer; add tokenizer.json to its folder")
        return tokens_by(self._tokenizer, self._source.source)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer as transformers loads it; None if there is none."""
        return self._tokenizer

    @property
    def template(self) -> ResponseTemplate | None:
        """How the family writes tool calls; None if its tokenizer does not say it."""
        return getattr(self._tokenizer, "response_template", None)

    def bare(self, text: str) -> tuple[int, ...]:
        """A text's tokens, without those that begin or end a prompt.

        Raises:
            ModelError: the files contain no tokenizer.
        """
        _ = self.tokens  # raises if there is none
        tokenizer: Any = self._tokenizer
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the chat template unless it is raw text."""
        return tuple(self.tokens.encode(prompt))

    def decoded(self, prompt: Sequence[int], tokens: Sequence[int], *, special: bool = False) -> SecondDecoding | None:
        """Text that `tokens` add to `prompt`; None without a tokenizer, or if the prompt ends inside a character."""
        tokenizer = self._tokenizer
        return None if tokenizer is None else decode_after(tokenizer, prompt, tokens, special=special)

    def facts(self, name: str) -> ModelFacts:
        """Digests and source, under the suite's name for the model."""
        return facts_of(name, self._opened)

    def reference(self) -> Reference:
        """Transformers' own forward, in float64 where memory allows; loaded at the first use.

        Raises:
            ModelError: transformers cannot load the files.
        """
        if self._reference is None:
            loaded = load_model(
                self._source.source,
                dtype=self._source.dtype,
                loader="hf",
                revision=self._source.revision,
                base=self._source.base,
                placed=False,
            )
            network: Any = getattr(loaded.model, "network")  # noqa: B009 - the protocol of models has no network
            self._reference = TransformersReference(network, loaded.model.facts)
        return self._reference

    def anchor_config(self, backend: str, plan: EngineSpec) -> Effective:
        """The facts of the pass; opens the reference."""
        facts = reading_facts(backend, self._opened.facts, plan, REFERENCE_PASS, reference=dict(self.reference().facts))
        return stated(LoopOwner.OWN, facts)

    def anchor(
        self, request: Request, tokens: Sequence[int], plan: EngineSpec, facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Generation:
        """The reference's rows at every one of `tokens`, as a plain generation with the given tokens and `facts`.

        The rows are the model's own, without the masks of a grammar, which the engine's library alone knows.
        """
        if request.sampling.structured is not None:
            request = replace(request, sampling=replace(request.sampling, structured=None))
        if plan.protocol not in (Protocol.GREEDY, Protocol.GUMBEL):
            raise InvalidRequest(f"a reference pass has no {plan.protocol} rule")
        given = ForeignEngine(self.vocabulary, self.eos_ids, plan.protocol, "given", plan.level)
        header = header_of(request, given, FinishReason.LENGTH, dict(facts))
        return anchored(self.reference(), request, tokens, header, self.tokens.decode)


def reading_facts(
    backend: str, target: Mapping[str, Any], plan: EngineSpec, reading: str, **more: Any
) -> dict[str, Any]:
    """The facts of a pass over given tokens.

    Args:
        backend: the registered name.
        target: its facts.
        plan: of the arm.
        reading: the pass in words.
        more: the facts of what reads.
    """
    return {
        "backend": backend,
        "target": dict(target),
        "pass": reading,
        **more,
        "protocol": plan.protocol.value,
        "lossless": True,
        "rows": 1,
        "gamma": 0,
        "record": plan.level.value,
    }


def model_facts(name: str, resolved: str, files: Iterable[ModelFile], facts: Mapping[str, Any]) -> ModelFacts:
    """The identity of a model by the facts of its files, of which `source` is one."""
    source = facts["source"]
    revision = resolved.partition("@")[2] or None if source.startswith("hf:") else None
    sizes = {file.name: {"sha256": file.sha256, "size": file.size} for file in files}
    manifest = {"facts": dict(facts), "files": sizes}
    return ModelFacts(name, source, revision, facts["model_sha256"], facts["tokenizer_sha256"], manifest)


def facts_of(name: str, opened: OpenedSource) -> ModelFacts:
    """The identity of files that are not loaded."""
    return model_facts(name, opened.resolved, opened.folder.files, opened.facts)


class LocalEngine:
    """The part of an arm's engine that its target's files give, without the state that some engines keep."""

    plan: EngineSpec
    target: LocalTarget
    backend: ClassVar[str]
    """The registered name."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the target's own tokenizer."""
        return self.target.encode(prompt)

    def memory(self) -> str | None:
        """None: no state persists between requests, or none that can be read back."""
        return None

    def forget(self) -> None:
        """Nothing to empty."""

    def anchor_config(self) -> Effective:
        """The teacher-forced pass of `engine.models.passes.reference_pass`; opens the reference."""
        return self.target.anchor_config(self.backend, self.plan)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`."""
        return self.target.anchor(request, tokens, self.plan)
