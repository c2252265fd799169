"""One arm on vLLM: sends requests to the engine, reconciles every answer and records it.

The effective configuration of an arm, from the facts that its engine reports at the start.

The configuration holds the requested settings and those that the driver read from the running objects: a setting that
vLLM ignores appears as a difference.

The models of a suite for vLLM: found and digested here, loaded by the engines.

An engine starts at an arm's first request. Arms with the same engine share it; an arm that sends one request at a time
shares an engine of any batch size.

Facts of an answer that follow from its tokens and its text alone: masks computed again, and tool calls.

vLLM in a process of ours has no tool parser; its server has. The calls on record are read from the committed tokens by
the parser that transformers ships, as the built-in engine reads them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from engine.backends import REGISTRY
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine, require_length, require_prompt
from engine.backends.local_target import LocalEngine, LocalTarget, facts_of
from engine.backends.second_decoding import SecondDecoding
from engine.backends.vllm import options
from engine.backends.vllm.adapters import AdapterTargets, AnchorPass
from engine.backends.vllm.features import adapter_facts, whole_groups
from engine.backends.vllm.options import EXTENSION, ModelFolders, VllmSettings, setting_of
from engine.backends.vllm.reconcile import NOTHING, Reconciliation, reconcile_counters
from engine.backends.vllm.second_masks import SecondMasks
from engine.backends.vllm.structured import structured_params
from engine.backends.vllm.supervise import CallOutcomes, EnginePool, GenerateCall, RequestOutcome
from engine.backends.vllm.to_record import RecordOptions, generation_of
from engine.core.errors import InvalidRequest
from engine.core.types import Generation, Protocol, RecordLevel, Request
from engine.decode.call_reader import CallReader, is_read, offer_facts
from engine.models.loading import OpenedSource, open_source
from engine.record.effective import Effective, LoopOwner, stated
from engine.record.foreign.requests import ForeignEngine
from engine.record.tool_calls import ResponseTemplate


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Facts to read the answers of one engine.

    template: how the target's family writes tool calls.
    decode: from a prompt and the tokens after it to the tokens' text.
    """

    masks: SecondMasks
    template: ResponseTemplate | None
    decode: Callable[[Sequence[int], Sequence[int]], SecondDecoding | None]

    def facts(self, request: Request, tokens: Sequence[int], text: str) -> Mapping[str, Any]:
        """The facts of one answer."""
        return {**self.masks.account(request.sampling, tokens, text), **self._calls(request, tokens, text)}

    def _calls(self, request: Request, tokens: Sequence[int], text: str) -> dict[str, Any]:
        mapping = offer_facts(request.tools, self.template)
        if not is_read(request.tools, self.template):
            return mapping
        assert self.template is not None

        def decoded(generated: Sequence[int]) -> str:
            text = self.decode(request.prompt, generated)
            return "" if text is None else text.text

        reader = CallReader(request, self.template, decoded)
        for count in range(1, len(tokens) + 1):
            reader.step(tokens[:count], 1)
        return {"tools": {**mapping["tools"], **reader.facts(text, len(tokens))}}


READ: Final = ("rejection_sample_method", "draft_sample_method", "model_runner")
"""Read from the objects that do the work, because vLLM's configuration keeps settings that it ignores."""


def evidence_problems(facts: Mapping[str, Any]) -> list[str]:
    """The reasons to reject the hooks' records."""
    return [*facts["worker"]["problems"], *facts["scheduler"]]


def level_of(record: RecordLevel, facts: Mapping[str, Any], setting: VllmSettings) -> int:
    """The arm's evidence level: that of the answers alone if the hooks could not be installed."""
    if evidence_problems(facts):
        return options.answer_level(setting.logprobs)
    return options.level_of(record, setting.logprobs)


def rule_of(plan: EngineSpec, facts: Mapping[str, Any]) -> Protocol:
    """The rule that verifies, as the running sampler has it."""
    return options.rule_of(plan.protocol, facts["worker"]["rejection_sample_method"])


def is_lossless(facts: Mapping[str, Any]) -> bool:
    """True if the running rule keeps the target's law."""
    return bool(facts["worker"]["rejection_sample_method"] != "synthetic")


PLUG_INS: Final = "installed logits processors"
"""Their key among the settings: who installs one requests it."""


def effective_of(plan: EngineSpec, setting: VllmSettings, facts: Mapping[str, Any], target: LocalTarget) -> Effective:
    """The effective configuration."""
    worker, settings = facts["worker"], facts["settings"]
    problems = evidence_problems(facts)
    speculative = settings["speculative"] or {}
    read = {name: worker[name] for name in READ if worker[name] is not None}
    # the draft has settings with the target's names, which are not the requested ones
    runs = {**speculative, **settings["engine"], **read}
    plugged = {PLUG_INS: facts["plug_ins"]} if facts["plug_ins"] else {}
    runs[PLUG_INS] = [name for name in facts["plug_ins"] if name in worker["processors"]]
    requested = {**setting.requested, **plugged}
    document = {
        "backend": "vllm",
        "target": dict(target.facts("target").manifest["facts"]),
        "proposer": "plain" if plan.proposer is None else speculative.get("method"),
        "gamma": speculative.get("num_speculative_tokens", 0),
        "protocol": rule_of(plan, facts).value,
        "lossless": is_lossless(facts),
        "rows": min(plan.rows, settings["engine"]["max_num_seqs"]),
        "record": plan.level.value,
        "fault": plan.fault,
        "engine": settings["engine"],
        "speculative": settings["speculative"],
        "worker": {name: value for name, value in worker.items() if name not in ("problems", "steps", "seconds")},
        "repair": setting.job["repair"],
        "installed": facts["installed"],
        **adapter_facts(setting.terms.adapters),
        "requested": requested,
        "effective": {name: runs[name] for name in requested if name in runs},
        "evidence": {"level": level_of(plan.level, facts, setting), "problems": problems},
    }
    return stated(LoopOwner.FOREIGN, document)


AT_ONCE = 4
"""Requests per call, as a multiple of those in flight; after each call the hooks' files are read and the engine's
counters compared.
"""
LEAST = 16


@dataclass(frozen=True, slots=True)
class VllmEngine(LocalEngine):
    """One arm. `setting` identifies the engine, which starts at the first request.

    The state of a suffix cache is not read back.
    """

    backend: ClassVar[str] = "vllm"

    plan: EngineSpec
    setting: VllmSettings
    target: LocalTarget
    pool: EnginePool
    adapters: AdapterTargets

    def evidence_level(self) -> int:
        """The record's level, or that of text and log-probabilities if the hooks could not be installed."""
        return level_of(self.plan.level, self._facts(), self.setting)

    def effective_config(self) -> Effective:
        """The effective configuration, read from the running engine."""
        return effective_of(self.plan, self.setting, self._facts(), self.target)

    def starts(self) -> str | None:
        """The engine by its draft, unless an arm before this one has started it."""
        if self.pool.knows(self.setting):
            return None
        draft = "no draft" if self.plan.proposer is None else f"{self.plan.proposer}, {self.plan.gamma} tokens"
        return f"vLLM ({draft})"

    def require(self, requests: Sequence[Request]) -> None:
        """Check token ids, lengths and notations of grammars; vLLM itself refuses parameters that it lacks."""
        context = self.setting.job["arguments"]["max_model_len"]
        for request in requests:
            if request.sampling.structured is not None:
                structured_params(request.sampling.structured)
            require_prompt(request, self.target.vocabulary)
            require_length(request, context, "the engine's max_model_len")

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
                reading = self._reading()
                counted = _counted(batch)
                for outcome in batch.outcomes:
                    yield generation_of(outcome, batch.call, counted, reading)

    def anchor(self, request: Request, tokens: Sequence[int]) -> Generation:
        """The reference's rows on `tokens`, without vLLM; an adapter's changes are in the reference's weights."""
        terms = self.setting.terms
        wanted = AnchorPass(self.plan, terms.adapter_of(request), "prompt_logprobs" in terms.chosen(request))
        return self.adapters.anchor(request, tokens, wanted)

    def _facts(self) -> Mapping[str, Any]:
        return self.pool.facts(self.setting)

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


def _uncounted(outcome: RequestOutcome) -> bool:
    return bool(outcome.request.sampling.stop or outcome.request.leaves_after)


def _counted(batch: CallOutcomes) -> Reconciliation:
    """The call's steps against its counters; requests ended by a stop string continue uncounted, and counted steps of
    one whose client left have no answer.
    """
    recorded = all(outcome.worker for outcome in batch.outcomes if outcome.failure is None)
    if not batch.call.counters or not recorded or any(map(_uncounted, batch.outcomes)):
        return NOTHING
    steps = [seen.step for outcome in batch.outcomes for seen in outcome.worker or ()]
    return reconcile_counters(steps, batch.call.counters)


class VllmBackend:
    """Folders of models, and the engines that run.

    Args:
        models: sources by name.
        extension: the class that extends vLLM's worker.
    """

    def __init__(self, models: Mapping[str, ModelSource], extension: str = EXTENSION) -> None:
        self._target = LocalTarget(models["target"])
        self._drafts: dict[str, OpenedSource] = {
            name: open_source(item.source, item.revision, item.base)
            for name, item in models.items()
            if name != "target"
        }
        folders = {name: item.folder.path.resolve() for name, item in self._drafts.items()}
        self._places = ModelFolders(
            self._target.folder.resolve(), folders, self._target.context, models["target"].dtype
        )
        self._adapters = AdapterTargets(models["target"], self._target)
        self._extension = extension
        self._pool = EnginePool()
        self._wide: dict[str, VllmSettings] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return (self._target.facts("target"), *(facts_of(name, item) for name, item in self._drafts.items()))

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm; its engine is started later."""
        kind = REGISTRY["vllm"]
        unknown = [name for name in plan.drafts if name not in self._drafts]
        if unknown:
            raise InvalidRequest(f"no model named {unknown[0]!r}; there are: {', '.join(('target', *self._drafts))}")
        if plan.proposer is not None and plan.proposer not in (kind.proposers or ()):
            raise InvalidRequest(f"vLLM has no proposer {plan.proposer!r}; it has: {', '.join(kind.proposers or ())}")
        if plan.fault is not None:
            raise InvalidRequest(f"fault {plan.fault}: faults are of the native backend; remove it")
        adapters = self._adapters.opened(plan.engine.get("adapters", {}))
        setting = setting_of(plan, replace(self._places, adapters=adapters), self._extension)
        if setting.narrow:
            setting = self._sharing(setting)
        else:
            self._wide.setdefault(setting.likeness, setting)
        return VllmEngine(plan, setting, self._target, self._pool, self._adapters)

    def close(self) -> None:
        """End all engines."""
        self._pool.close()
        self._adapters.close()

    def _sharing(self, setting: VllmSettings) -> VllmSettings:
        """The engine of an arm before this one that is otherwise the same."""
        wide = self._wide.get(setting.likeness)
        if wide is None:
            return setting
        requested = {**setting.requested, "max_num_seqs": wide.requested["max_num_seqs"]}
        return replace(setting, job=wide.job, requested=requested)
