"""One arm: requests through `generate`, one at a time, and the observations of their steps.

If the steps cannot be observed, the evidence of the arm or of the one request is reduced to text and log-probabilities.

Parameters that transformers would drop or interpret differently are refused, so that both engines have the same p.
Every parameter is set explicitly, because transformers fills unset ones with its own defaults (50 for `top_k`).
"""

import contextlib
import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import torch
from transformers import GenerationConfig

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import require_length
from engine.backends.local_target import LocalEngine, LocalTarget
from engine.backends.transformers import compat as guard
from engine.backends.transformers.hooks import HookedGenerate, watched
from engine.backends.transformers.networks import network_of
from engine.backends.transformers.settings import (
    ARGMAX,
    LEVELS,
    TEXT_LEVEL,
    TransformersSettings,
    assistant_keys,
    generation_keys,
)
from engine.backends.transformers.to_record import SOURCES, GenerateOutput, logprobs, mismatches, observed, plain, told
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Generation, Protocol, Request, SamplingParams
from engine.models.loading import LoadedModel
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine, ForeignRecord, header_of, observed_trace, unanswered
from engine.sampling.stopping import StopRule

Problem = Callable[[SamplingParams, tuple[int, ...]], bool]
REFUSED: Final[Mapping[str, Problem]] = {
    "structured needs backend native or scripted; transformers has no grammars": lambda s, _: s.structured is not None,
    "transformers has no presence_penalty; set it to 0": lambda s, _: bool(s.presence_penalty),
    "transformers has no frequency_penalty; set it to 0": lambda s, _: bool(s.frequency_penalty),
    "transformers matches bad_words of several tokens against the prompt too; give single tokens": lambda s, _: any(
        len(word) > 1 for word in s.bad_words
    ),
    "transformers ignores an end token among bad_words; use min_tokens or ignore_eos": lambda s, eos: any(
        word[0] in ends(s, eos) for word in s.bad_words
    ),
    "transformers applies min_p after top_p, not before; use one of them": lambda s, _: (
        s.min_p > 0 and s.top_p < 1 and not s.greedy
    ),
}
"""Unsupported parameters, each with the fix."""


def ends(sampling: SamplingParams, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a generation."""
    return (*(() if sampling.ignore_eos else eos_ids), *sampling.stop_token_ids)


def refusal(sampling: SamplingParams, eos_ids: tuple[int, ...], settings: TransformersSettings) -> str | None:
    """The reason why a request cannot be served, or None."""
    for message, holds in REFUSED.items():
        if holds(sampling, eos_ids):
            return message
    if sampling.stop and settings.kind in ("draft_model", "early_exit", "universal"):
        return f"transformers runs no stop strings beside proposer {settings.kind}; use stop_token_ids"
    if settings.kind == "universal" and not sampling.plain_scores:
        return "proposer universal applies biases, masks and penalties to the wrong tokens of the draft; remove them"
    return None


def configuration(
    sampling: SamplingParams, eos_ids: tuple[int, ...], settings: TransformersSettings
) -> GenerationConfig:
    """The generation configuration of one request."""
    stops = ends(sampling, eos_ids)
    return GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=list(stops) or None,
        # there is no padding in a batch of one; transformers warns if it must choose
        pad_token_id=stops[0] if stops else 0,
        use_cache=True,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        stop_strings=list(sampling.stop) or None,
        repetition_penalty=sampling.repetition_penalty,
        sequence_bias=_biases(sampling),
        bad_words_ids=[list(word) for word in sampling.bad_words] or None,
        min_new_tokens=sampling.min_tokens or None,
        **_warpers(sampling),
        **generation_keys(settings),
    )


def _biases(sampling: SamplingParams) -> list[list[Any]] | None:
    """Biases of one token add up here; of several entries transformers would take one."""
    added: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        added[token] = added.get(token, 0.0) + bias
    return [[[token], float(bias)] for token, bias in added.items()] or None


def _warpers(sampling: SamplingParams) -> dict[str, Any]:
    if sampling.greedy:
        return {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    return {
        "do_sample": True,
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": float(sampling.top_p),
        "min_p": float(sampling.min_p) or None,
    }


@dataclass(frozen=True, slots=True)
class AssistantModel:
    """The draft: a network and its facts; the tokenizer only if it differs from the target's."""

    network: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


def seed_of(request: Request) -> int:
    """The seed of torch's global generator for one request, in [0, 2^63): a hash of seed and stream."""
    text = f"{request.sampling.seed}:{request.stream}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class TransformersEngine(LocalEngine):
    """Assisted generation over one target, or plain `generate`."""

    backend = "transformers"

    def __init__(
        self,
        target: LoadedModel,
        assistance: AssistantModel,
        local_target: LocalTarget,
        plan: EngineSpec,
        settings: TransformersSettings,
    ) -> None:
        self._loaded, self._assistance, self.target = target, assistance, local_target
        self._network = network_of(target)
        self.plan, self._settings = plan, settings
        self._copies: dict[bool, Any] = {}
        self._problems = guard.problems(settings.kind)
        self._protocol = settings.protocol(plan.protocol)

    def evidence_level(self) -> int:
        """Decisions and rows, or text and log-probabilities if the guards refuse."""
        whole = LEVELS[self.plan.level].level
        return min(whole, TEXT_LEVEL) if self._problems else whole

    def effective_config(self) -> Effective:
        """The effective configuration."""
        settings = self._settings
        document = {
            "backend": "transformers",
            "version": version("transformers"),
            "target": dict(self._loaded.model.facts),
            "draft": dict(self._assistance.facts) or None,
            "proposer": settings.kind or "plain",
            "proposer_options": dict(settings.options),
            "gamma": settings.gamma if settings.bounded else None,
            "steady_drafts": None,
            "protocol": self._protocol.value,
            "lossless": settings.weight == 1.0,
            "verifier_options": {},
            "rows": 1,
            "record": self.plan.level.value,
            "fault": ARGMAX if settings.argmax_draft else None,
            "evidence": {"level": self.evidence_level(), "problems": list(self._problems)},
            "requested": self._compared(self.plan.protocol.value, self.plan.gamma),
            "effective": self._compared(self._protocol.value, settings.gamma),
            "torch_threads": torch.get_num_threads(),
        }
        return stated(LoopOwner.FOREIGN, document)

    def _compared(self, protocol: str, gamma: int) -> dict[str, Any]:
        """A plain arm verifies nothing: transformers does not run the rule that a suite plans for it."""
        return {} if self._settings.kind is None else {"protocol": protocol, "gamma": gamma}

    def require(self, requests: Sequence[Request]) -> None:
        """Check lengths, rules and parameters.

        Raises:
            CapacityError: a request does not fit the target's context.
            InvalidRequest: a setting that transformers cannot serve.
        """
        for request in requests:
            self._require(request)

    def _require(self, request: Request) -> None:
        sampling = request.sampling
        problem = refusal(sampling, self.target.eos_ids, self._settings)
        if problem is not None:
            raise InvalidRequest(f"request {request.id}: {problem}")
        if self._settings.kind is not None and self.plan.protocol is Protocol.GREEDY and not sampling.greedy:
            raise InvalidRequest(
                f"request {request.id}: transformers takes the argmax at temperature 0 only; use verifier: chain"
            )
        require_length(request, self._loaded.model.context)

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """One request after the other; raises as `require`, before any request is started."""
        self.require(requests)
        for request in requests:
            yield self._generate(request)

    def _generate(self, request: Request) -> Generation:
        start = time.perf_counter()
        try:
            with self._watched(request) as seen:
                output = self._run(request)
        except Exception as error:  # transformers raises arbitrary exceptions; the other requests continue
            words = " ".join(str(error).split())[:500]
            return unanswered(request, self._observed(), "refused", f"{type(error).__name__}: {words}")
        latency = int(1e6 * (time.perf_counter() - start))
        rule = StopRule(request.sampling, self.target.eos_ids, self.target.tokens.decode)
        reason = self._reason(request, output.tokens)
        facts, answer = self._answer(request, output, seen)
        facts["decoded"] = self.target.tokens.decode(output.tokens)
        trace = observed_trace(header_of(request, self._observed(), reason, facts), answer)
        text = rule.text(output.tokens, reason)
        return Generation(request, output.tokens, reason, trace, text, latency, facts)

    def _watched(self, request: Request) -> AbstractContextManager[HookedGenerate | None]:
        if self._settings.kind is None or self._problems:
            return contextlib.nullcontext(None)
        wrap = argmax_draft if self._settings.argmax_draft else None
        return watched(self._network, request.sampling.greedy, wrap)

    @torch.no_grad()
    def _run(self, request: Request) -> GenerateOutput:
        prompt = torch.tensor([list(request.prompt)], device=self._network.device)
        asked = configuration(request.sampling, self.target.eos_ids, self._settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(request))
            answer = self._network.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=asked, **self._assistants(request)
            )
        return GenerateOutput(
            tokens=tuple(answer.sequences[0, len(request.prompt) :].tolist()),
            logits=torch.cat(answer.logits).float().cpu().numpy(),
            scores=torch.cat(answer.scores).float().cpu().numpy(),
        )

    def _assistants(self, request: Request) -> dict[str, Any]:
        """Keyword arguments of `generate`; each request gets a new configuration for the assistant."""
        keys: dict[str, Any] = {}
        # arms share the networks, so settings of an earlier arm must not remain
        self._network.generation_config = GenerationConfig()
        network = self._assistant(request)
        assistant = self._network if self._settings.kind == "early_exit" else network
        if assistant is not None:
            assistant.generation_config = GenerationConfig(**assistant_keys(self._settings))
        if network is not None:
            keys["assistant_model"] = network
        if self._assistance.tokenizer is not None:
            keys["assistant_tokenizer"] = self._assistance.tokenizer
        if self._assistance.tokenizer is not None or request.sampling.stop:
            keys["tokenizer"] = self._loaded.tokenizer
        return keys

    def _assistant(self, request: Request) -> Any:
        """The draft, copied if transformers would change it in place, which it does when it samples."""
        if self._settings.kind != "universal":
            return self._assistance.network
        greedy = request.sampling.greedy
        if greedy not in self._copies:
            self._copies[greedy] = copy.deepcopy(self._assistance.network)
        return self._copies[greedy]

    def _answer(
        self, request: Request, output: GenerateOutput, seen: HookedGenerate | None
    ) -> tuple[dict[str, Any], ForeignRecord]:
        """The evidence accepted for a request, and the reason why it is not more."""
        greedy = request.sampling.greedy
        if self._settings.kind is None:
            return {}, ForeignRecord(plain(output, greedy))
        if seen is None:
            return {}, ForeignRecord(told(output), logprobs(output))
        result = mismatches(seen, request.prompt, output)
        facts: dict[str, Any] = {"reconciliation": {"sources": list(SOURCES), "mismatches": list(result)}}
        facts["drafter"] = seen.drafter
        if result:
            facts |= {"level": TEXT_LEVEL, "why": f"what was seen of the drafts contradicts itself: {result[0]}"}
            return facts, ForeignRecord(told(output), logprobs(output))
        return facts, ForeignRecord(observed(seen, output, self._settings.soft))

    def _reason(self, request: Request, tokens: tuple[int, ...]) -> FinishReason:
        sampling = request.sampling
        if tokens[-1] in ends(sampling, self.target.eos_ids):
            return FinishReason.STOP if tokens[-1] in sampling.stop_token_ids else FinishReason.EOS
        text = self.target.tokens.decode(tokens) if sampling.stop else ""
        return FinishReason.STOP if any(stop in text for stop in sampling.stop) else FinishReason.LENGTH

    def _observed(self) -> ForeignEngine:
        return ForeignEngine(
            vocabulary=self._loaded.model.vocabulary,
            eos_ids=self.target.eos_ids,
            protocol=self._protocol,
            proposer=self._settings.kind or "plain",
            level=self.plan.level,
            lossless=self._settings.weight == 1.0,
        )


def argmax_draft(generator: Any) -> Any:
    """The assistant decodes greedily; the scores that it hands over stay the ones that it would sample from."""
    generator.generation_config.do_sample = False
    return generator
