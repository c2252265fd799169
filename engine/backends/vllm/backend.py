"""One arm on vLLM: sends requests to the engine, reconciles every answer and records it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Capabilities, Prompt
from engine.backends.local_target import LocalTarget
from engine.backends.vllm.adapters import AdapterTargets, AnchorPass
from engine.backends.vllm.answers import AnswerFacts
from engine.backends.vllm.facts import effective_of, evidence_problems, is_lossless, level_of, rule_of
from engine.backends.vllm.features import whole_groups
from engine.backends.vllm.options import VllmSettings
from engine.backends.vllm.reconcile import NOTHING, Reconciliation, reconcile_counters
from engine.backends.vllm.second_masks import SecondMasks
from engine.backends.vllm.structured import structured_params
from engine.backends.vllm.supervise import CallOutcomes, EnginePool, GenerateCall
from engine.backends.vllm.to_record import RecordOptions, generation_of
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Generation, RecordLevel, Request
from engine.record.effective import Effective
from engine.record.foreign import ForeignEngine

AT_ONCE = 4
"""Requests per call, as a multiple of those in flight; after each call the hooks' files are read and the engine's
counters compared.
"""
LEAST = 16


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """One arm. `setting` identifies the engine, which starts at the first request."""

    plan: EngineSpec
    setting: VllmSettings
    target: LocalTarget
    pool: EnginePool
    adapters: AdapterTargets

    def capabilities(self) -> Capabilities:
        """The record's level, or that of text and log-probabilities if the hooks could not be installed."""
        return Capabilities(level_of(self.plan.level, self._facts(), self.setting))

    def effective_config(self) -> Effective:
        """The effective configuration, read from the running engine."""
        return effective_of(self.plan, self.setting, self._facts(), self.target)

    def starts(self) -> str | None:
        """The engine by its draft, unless an arm before this one has started it."""
        if self.pool.knows(self.setting):
            return None
        draft = "no draft" if self.plan.proposer is None else f"{self.plan.proposer}, {self.plan.gamma} tokens"
        return f"vLLM ({draft})"

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens, by the target's own tokenizer."""
        return self.target.encode(prompt)

    def require(self, requests: Sequence[Request]) -> None:
        """Check token ids, lengths and notations of grammars; vLLM itself refuses parameters that it lacks."""
        context = self.setting.job["arguments"]["max_model_len"]
        for request in requests:
            if request.sampling.structured is not None:
                structured_params(request.sampling.structured)
            wrong = [token for token in request.prompt if not 0 <= token < self.target.vocabulary]
            if wrong:
                raise InvalidRequest(
                    f"request {request.id}: the prompt names token {wrong[0]}, but ids end at "
                    f"{self.target.vocabulary - 1}"
                )
            if len(request.prompt) + request.sampling.max_new_tokens > context:
                raise CapacityError(
                    f"request {request.id}: prompt of {len(request.prompt)} tokens and max_new_tokens "
                    f"{request.sampling.max_new_tokens} exceed the engine's max_model_len of {context}; "
                    "shorten the prompt or lower max_new_tokens"
                )

    def memory(self) -> str | None:
        """None: the state of a suffix cache is not read back."""
        return None

    def forget(self) -> None:
        """Start methods with state anew in another engine."""
        if self.plan.proposer == "suffix":
            self.pool.drop(self.setting)

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """All requests, `rows` of them in flight; a request that fails alone yields its own error."""
        if not requests:
            return
        self.require(requests)
        asking = GenerateCall(self.pool, self.setting, self._reading().kept, self.plan.rows)
        size = whole_groups(max(LEAST, AT_ONCE * self.plan.rows), self.setting.terms)
        for at in range(0, len(requests), size):
            for batch in asking.ask(requests[at : at + size]):
                yield from self._generations(batch)

    def anchor_config(self) -> Effective:
        """The pass of `anchor`."""
        return self.target.anchor_config("vllm", self.plan)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`, without vLLM; an adapter's changes are in the reference's weights."""
        terms = self.setting.terms
        wanted = AnchorPass(self.plan, terms.adapter_of(request), "prompt_logprobs" in terms.chosen(request))
        return self.adapters.anchor(request, tokens, wanted)

    def _facts(self) -> Mapping[str, Any]:
        return self.pool.facts(self.setting)

    def _generations(self, batch: CallOutcomes) -> Iterator[Generation]:
        reading = self._reading()
        counted = _counted(batch)
        for outcome in batch.outcomes:
            yield generation_of(outcome, batch.call, counted, reading)

    def _reading(self) -> RecordOptions:
        facts = self._facts()
        observed = ForeignEngine(
            vocabulary=self.target.vocabulary,
            eos_ids=self.target.eos_ids,
            protocol=rule_of(self.plan, facts),
            proposer=self.plan.proposer or "plain",
            level=RecordLevel.TOKENS if evidence_problems(facts) else self.plan.level,
            lossless=is_lossless(facts),
        )
        drawn = facts["worker"]["draft_sample_method"] == "probabilistic"
        masks = facts["worker"]["model_runner"] == "v1"
        return RecordOptions(observed, drawn, self.target.decoded, self.setting.terms, masks, self._answered().facts)

    def _answered(self) -> AnswerFacts:
        target = self.target
        seconds = SecondMasks(target.tokenizer, target.vocabulary, target.eos_ids, self._facts())
        return AnswerFacts(seconds, target.template, target.decoded)


def _counted(batch: CallOutcomes) -> Reconciliation:
    """The call's steps against its counters; requests ended by a stop string continue uncounted."""
    recorded = all(each.worker for each in batch.outcomes if each.failure is None)
    if not batch.call.counters or not recorded or any(each.request.sampling.stop for each in batch.outcomes):
        return NOTHING
    steps = [seen.step for each in batch.outcomes for seen in each.worker or ()]
    return reconcile_counters(steps, batch.call.counters)
