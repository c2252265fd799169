"""The built-in engine: the decoding loop over models in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from engine import proposers, verify
from engine.backends.call_grammar import CallGrammars
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine, Prompt, PromptTokenizer, TargetSizes, require_length
from engine.backends.local_target import REFERENCE_PASS, model_facts, reading_facts
from engine.backends.native import LEVELS
from engine.backends.native.limits import require_fit, require_room, require_tokens
from engine.backends.tokenizer import tokens_by
from engine.constraints.compiled import Grammars
from engine.constraints.interface import TokenSpelling
from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import FinishReason, Generation, Request
from engine.decode.arrivals import Arrivals
from engine.decode.loop import Loop, LoopOptions
from engine.decode.redrafting import Redrafter, recorded_steps
from engine.decode.redraws import Redraws
from engine.decode.seams import EngineParts, as_it_is
from engine.faults import break_parts
from engine.heads.checkpoint import LoadedHead
from engine.heads.loading import load_model_or_head
from engine.models.draft_vocabulary import PaddedDraft
from engine.models.interface import SlotCache
from engine.models.loading import LoadedModel, LoadOptions, check_same_tokenizer
from engine.models.numerics import AUTO, DRAFTING, ROUNDED
from engine.models.numerics.interface import Invariance
from engine.models.passes.reference_pass import Reference, anchored, open_reference
from engine.models.passes.rereading import reread, rereader
from engine.models.probe.choose import ModelWithNumerics
from engine.proposers.interface import PlainProposer, Proposer, ProposerParts, SharedMemory, TargetSide, memory_of
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine, header_of
from engine.record.trace import Trace, TraceHeader
from engine.stream.loading import load_stream


class NativeEngine:
    """The loop, built anew for each batch of requests so that caches fit them; shared state persists until `forget`."""

    def __init__(
        self,
        target: ModelWithNumerics,
        drafts: Sequence[ModelWithNumerics],
        tokens: PromptTokenizer,
        plan: EngineSpec,
        head: LoadedHead | None = None,
        reference: Callable[[], Reference] | None = None,
    ) -> None:
        self._target = target.model
        self._rereader = rereader(target)
        self._reference = reference
        self._head = head
        self._drafts = tuple(draft.model for draft in drafts)
        self._promises = [model.numerics.promises for model in (target, *drafts)]
        self._numerics = {
            "numerics": target.numerics.full_facts(),
            "draft_numerics": drafts[0].numerics.facts() if drafts else None,
        }
        self._tokens = tokens
        self._grammars = Grammars(self._spell, self._target.eos_ids)
        self._calls = CallGrammars(tokens.write, tokens.template)
        self._plan = plan
        parts = EngineParts(verifier=verify.load(plan.protocol, plan.verifier_options))
        self._parts = break_parts(plan.fault, parts) if plan.fault else parts
        self._stream = load_stream(plan.stream) if plan.stream else None
        self._memory: SharedMemory | None = None
        self._facts = self._proposer(rows=1, capacity=1).facts
        require_fit(self._parts.verifier.facts, self._facts)
        require_room(target, self._facts, plan.gamma)

    def evidence_level(self) -> int:
        """Everything can be recorded, random numbers included; the record level decides."""
        return LEVELS[self._plan.level].level

    def effective_config(self) -> Effective:
        """The effective configuration, read from the built parts."""
        facts = self._parts.verifier.facts
        document = {
            "backend": "native",
            "target": dict(self._target.facts),
            "context": self._target.context,
            "draft": dict(self._drafts[0].facts) if self._drafts else None,
            "other_drafts": [dict(draft.facts) for draft in self._drafts[1:]],
            "head": dict(self._head.facts) if self._head else None,
            **self._numerics,
            "proposer": self._facts.name,
            "proposer_shape": self._facts.shape,
            "proposer_state": self._facts.state,
            "proposer_options": dict(self._facts.options),
            "shared_memory": self.memory(),
            "draft_version": self._facts.version.digest if self._facts.version else None,
            "gamma": self._plan.gamma,
            "steady_drafts": asdict(self._facts.steady) if self._facts.steady else None,
            "protocol": facts.protocol.value,
            "lossless": facts.lossless,
            "verifier_options": dict(facts.options),
            "draft_rule": facts.draft_rule.value,
            "rows": self._plan.rows,
            "record": self._plan.level.value,
            "fault": self._plan.fault,
            "torch_threads": torch.get_num_threads(),
            **self._streamed(),
        }
        return stated(LoopOwner.OWN, document)

    def _streamed(self) -> dict[str, Any]:
        """The filters of an arm that records its text as it leaves, with their rules."""
        if self._plan.stream is None or self._stream is None:
            return {}
        pairs = zip(self._stream.facts(), self._plan.stream.filters, strict=True)
        return {"stream": {"filters": [{**facts, "rules": dict(spec.document)} for facts, spec in pairs]}}

    def memory(self) -> str | None:
        """Digest of state carried between requests; None if stateless."""
        return self._memory.fingerprint() if self._memory else None

    def forget(self) -> None:
        """Empty that memory."""
        if self._memory:
            self._memory.reset()

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the chat template unless it is raw text."""
        return tuple(self._tokens.encode(prompt))

    def require(self, requests: Sequence[Request]) -> None:
        """Check lengths and token ids.

        Raises:
            CapacityError: a request does not fit the target's context.
            InvalidRequest: the prompt or a sampling parameter names a token that does not exist, a grammar is refused,
                or nothing says how the model writes the call that a request demands.
        """
        for request in requests:
            require_tokens(request, self._target.vocabulary)
            self._grammars.constraint(self._calls.constrained(request).sampling)
            require_length(request, self._target.context)

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Run the loop; raises as `require`, before any request is started."""
        if not requests:
            return
        self.require(requests)
        longest = max(len(request.prompt) + request.sampling.max_new_tokens for request in requests)
        loop = self._loop(min(self._plan.rows, len(requests)), longest, record=True)
        yield from loop.run([self._calls.constrained(request) for request in requests])

    def sizes(self) -> TargetSizes:
        """Of the target."""
        return TargetSizes(self._target.vocabulary, self._target.context, self._target.eos_ids)

    def tokenizer(self) -> PromptTokenizer:
        """The target's own."""
        return self._tokens

    def admitted(self, request: Request) -> Request:
        """The request as the loop takes it; raises as `require`."""
        self.require([request])
        return self._calls.constrained(request)

    def serve(self, arrivals: Arrivals, longest: int, *, record: bool) -> Iterator[Generation]:
        """Run the loop over requests that come while it runs."""
        return self._loop(self._plan.rows, longest, record=record).serve(arrivals)

    def _loop(self, rows: int, longest: int, *, record: bool) -> Loop:
        """A loop for so many rows with at most `longest` tokens each."""
        capacity = min(longest + self._plan.gamma + self._facts.lookahead_tokens, self._target.context)
        options = LoopOptions(rows, self._plan.gamma, capacity, self._plan.level, record, stream=self._stream)
        cache = self._target.new_cache(rows, capacity)
        proposer = self._proposer(rows, capacity, cache)
        return Loop(
            self._parts.target(self._target),
            proposer,
            self._parts.verifier,
            self._tokens.decode,
            options,
            cache,
            self._parts,
            template=self._tokens.template,
            grammars=self._grammars,
        )

    def anchor_config(self) -> Effective:
        """The pass of `anchor`; opens the reference."""
        return self._reading_config(REFERENCE_PASS, reference=dict(self._opened().facts))

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`."""
        request = self._calls.constrained(request)
        masks = self._grammars.constraint(request.sampling)
        return anchored(self._opened(), request, tokens, self._reading_header(request), self._tokens.decode, masks)

    def reread_config(self) -> Effective:
        """The reading of `reread`, whose numerics are those of decoding."""
        reading = "the target's own forward over prompt and tokens; a fresh cache, no draft, no batch"
        return self._reading_config(reading, numerics=self._numerics["numerics"], **self._rereader.facts())

    def reread(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The target's rows on `tokens`, without a fault."""
        request = self._calls.constrained(request)
        return reread(self._rereader, request, tokens, self._reading_header(request), self._tokens.decode)

    def redraft_config(self) -> Effective:
        """The pass of `redraft`."""
        reading = "the proposer alone along the recorded tokens and decisions; fresh caches, one row, no neighbours"
        document = self.effective_config().to_json()
        facts = {"repeats": self._repeats(), "measured": self._facts.measured}
        return stated(LoopOwner.OWN, {**document, "pass": reading, "rows": 1, "copies": self._facts.copies, **facts})

    def _repeats(self) -> bool:
        """True if drafts come out the same to the last bit, in a batch and alone: nothing that drafts rounds, or its
        numerics promise equal bits.
        """
        if self._facts.copies or self._head is not None:
            return self._facts.copies
        needed = Invariance.TREE if self._facts.shape == "tree" else Invariance.CHAIN
        return all(promise >= needed for promise in self._promises[0 if self._facts.reads_target else 1 :])

    def redraft(self, request: Request, recorded: Trace) -> Generation | None:
        """The drafts along a record, by the engine's own parts."""
        request = self._calls.constrained(request)
        tokens = len(request.prompt) + max(len(recorded.token), request.sampling.max_new_tokens)
        capacity = min(tokens + self._plan.gamma + self._facts.lookahead_tokens, self._target.context)
        cache = self._target.new_cache(1, capacity)
        redraws = Redraws(self._parts.draw)
        proposer = self._proposer(1, capacity, cache, redraws.parts)
        options = LoopOptions(1, self._plan.gamma, capacity, self._plan.level)
        redrafter = Redrafter(
            self._target, proposer, self._parts, cache, options, self._tokens.decode, self._grammars, redraws
        )
        return redrafter.run(request, recorded_steps(recorded))

    def _reading_config(self, reading: str, **more: Any) -> Effective:
        facts = reading_facts("native", self._target.facts, self._plan, reading, **more)
        return stated(LoopOwner.OWN, {**facts, "torch_threads": torch.get_num_threads()})

    def _reading_header(self, request: Request) -> TraceHeader:
        given = ForeignEngine(
            self._target.vocabulary, self._target.eos_ids, self._plan.protocol, "given", self._plan.level
        )
        return header_of(request, given, FinishReason.LENGTH, {})

    def _opened(self) -> Reference:
        if self._reference is None:
            raise InvalidRequest("this backend was made without a reference for its target")
        return self._reference()

    def _spell(self) -> TokenSpelling:
        if self._tokens.spell is None:
            raise InvalidRequest("structured needs the bytes of every token, which this tokenizer does not give")
        return self._tokens.spell(self._target.vocabulary)

    def _proposer(
        self,
        rows: int,
        capacity: int,
        cache: SlotCache | None = None,
        change: Callable[[ProposerParts], ProposerParts] = as_it_is,
    ) -> Proposer:
        if self._plan.proposer is None:
            return PlainProposer()
        drafts = tuple(self._parts.draft(draft) for draft in self._drafts)
        parts = ProposerParts(
            rows=rows,
            capacity=capacity,
            rule=self._parts.verifier.facts.draft_rule,
            draw=self._parts.draw,
            eos_ids=self._target.eos_ids,
            draft=drafts[0] if drafts else None,
            options=self._plan.options,
            others=drafts[1:],
            target=TargetSide(self._target, cache or self._target.new_cache(rows, capacity)),
            head=self._head.head if self._head else None,
            draw_siblings=self._parts.draw_siblings,
            gamma=self._plan.gamma,
            memory=self._memory,
        )
        built = proposers.build(self._plan.proposer, change(parts))
        self._memory = memory_of(built)
        return self._parts.proposer(built)


class NativeBackend:
    """Models loaded from folders, the hub or the bundle."""

    def __init__(self, models: Mapping[str, LoadedModel], heads: Mapping[str, LoadedHead]) -> None:
        self._heads = heads
        self._reference: Reference | None = None
        if "target" in heads:
            raise ModelError(f"{heads['target'].source}: a draft head cannot be the target; name a whole model")
        target = models["target"]
        if target.tokenizer is None:
            raise ModelError(f"{target.source}: the target has no tokenizer; add tokenizer.json to its folder")
        self._models = {name: _fitted(target, model) for name, model in models.items()}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        models = (model_facts(name, one.resolved, one.files, one.model.facts) for name, one in self._models.items())
        heads = (model_facts(name, one.resolved, one.files, one.facts) for name, one in self._heads.items())
        return (*models, *heads)

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend over the loaded models."""
        known = (*self._models, *self._heads)
        unknown = [name for name in plan.drafts if name not in known]
        if unknown:
            raise InvalidRequest(f"no model named {unknown[0]!r}; there are: {', '.join(known)}")
        target = self._models["target"]
        drafts = [_equipped(self._models[name]) for name in plan.drafts if name in self._models]
        heads = [self._heads[name] for name in plan.drafts if name in self._heads]
        if len(heads) > 1:
            raise InvalidRequest(f"{heads[1].source}: an arm drafts with one head, {heads[0].source} is there already")
        head = heads[0] if heads else None
        return NativeEngine(_equipped(target), drafts, _tokens(target), plan, head, self._open_reference)

    def _open_reference(self) -> Reference:
        """Opened at the first use, because it holds a second copy of the weights."""
        if self._reference is None:
            self._reference = open_reference(self._models["target"])
        return self._reference


def _fitted(target: LoadedModel, model: LoadedModel) -> LoadedModel:
    """The model with as many logits as the target has; raises ModelError if their ids may mean different texts."""
    if model is not target and model.tokenizer is not None:
        check_same_tokenizer(target, model)
    own, needed = model.model.vocabulary, target.model.vocabulary
    if own == needed:
        return model
    if model.tokenizer is None:
        raise ModelError(
            f"{model.source}: {own} logits, but the target has {needed}, and no tokenizer shows that the ids mean the "
            "same; add tokenizer.json to its folder"
        )
    return replace(model, model=PaddedDraft(model.model, needed))


def _equipped(loaded: LoadedModel) -> ModelWithNumerics:
    return ModelWithNumerics(loaded.model, loaded.numerics)


def _tokens(loaded: LoadedModel) -> PromptTokenizer:
    assert loaded.tokenizer is not None
    return tokens_by(loaded.tokenizer, loaded.source)


def open_models(models: Mapping[str, ModelSource]) -> NativeBackend:
    """Load every model of a suite.

    Raises:
        ModelError: a model that cannot be loaded, or that does not fit the target.
        InvalidRequest: an unknown numerics mode, or one that this loader lacks.
        NumericsRefused: a numerics mode that does not hold on this machine.
    """
    loaded = {name: _load(name, model) for name, model in models.items()}
    heads = {name: item for name, item in loaded.items() if isinstance(item, LoadedHead)}
    return NativeBackend({name: item for name, item in loaded.items() if isinstance(item, LoadedModel)}, heads)


def _load(name: str, model: ModelSource) -> LoadedModel | LoadedHead:
    if name == "target" and model.numerics in ROUNDED:
        raise InvalidRequest(f"{model.source}: numerics {model.numerics} rounds the weights and is for drafts only")
    numerics = model.numerics or (AUTO if name == "target" else DRAFTING)
    way = LoadOptions(model.dtype, model.loader, numerics, model.device)
    return load_model_or_head(model.source, way, model.revision, model.base)
