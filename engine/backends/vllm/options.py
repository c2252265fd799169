"""From an arm's plan to the arguments of vLLM (the engine's, the draft's, a request's), and the evidence of its record.

The module uses vLLM's names without importing it. vLLM imports classes by name, and its process has the working
directory on its path, so a name is enough to run code: `outside` lists what an arm's settings would touch outside the
suite.

The evidence is that of a running vLLM with working hooks. No record holds the engine's random numbers. Settings that
vLLM ignores, such as a rule that its model runner lacks, appear only in the effective configuration.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.backends.access import OutsideAccess, OutsideKind
from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import ArmEvidence, ArmSettings, Declaration, Part, Shown, levels
from engine.backends.process.settings import DECODED, require_known, seed_of
from engine.backends.vllm.features import KEY, RequestTerms, adapter_arguments, terms_of
from engine.backends.vllm.structured import requested_config, structured_config, structured_params
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request
from engine.record.effective import LoopOwner

if TYPE_CHECKING:
    from engine.models.files.adapters import Adapter


EXTENSION: Final = "engine.backends.vllm.hooks.worker.RecordingWorker"
SCHEDULER: Final = "engine.backends.vllm.hooks.scheduler.LoggingScheduler"
ASYNC_SCHEDULER: Final = "engine.backends.vllm.hooks.scheduler.AsyncLoggingScheduler"
OURS: Final = (
    *("python", "kv_cache_gib", "logprobs", "repair", "model_runner", "timeout_s", "start_timeout_s", "restarts"),
    *("engines", "adapters", KEY),
)
"""Settings that have no vLLM argument of the same name."""
DTYPES: Final = ("float32", "bfloat16", "float16")
WITH_MODEL: Final = ("draft_model", "medusa", "eagle", "eagle3", "dflash")
WITHOUT_MODEL: Final = ("ngram", "suffix")
DRAWING: Final = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""Methods whose drafts may be drawn from rows."""
RESERVED: Final = ("method", "num_speculative_tokens")
GIB: Final = 2**30
HOOKS: Final = "engine.backends.vllm.hooks."
"""Classes of our own."""
HARMLESS: Final = frozenset(
    (
        *("mode", "level", "use_inductor", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"),
        *("cudagraph_num_of_warmups", "compile_sizes", "custom_ops", "use_cudagraph"),
    )
)
"""Keys of `compilation_config` that name no code and no file."""
MADE: Final = "made:"
LEVELS: Final[Mapping[RecordLevel, Shown]] = levels(
    {
        RecordLevel.TOKENS: (0, DECODED | {Part.CALLS, Part.CALLED_TEXT, Part.MASKS, Part.DRAFTS, Part.COUNTS}),
        RecordLevel.SCALARS: (1, frozenset((Part.LOGPROBS,))),
        RecordLevel.TOPK: (3, frozenset((Part.P, Part.APPLIED, Part.Q))),
        RecordLevel.FULL: (3, frozenset((Part.ROWS,))),
    }
)
RULES: Final[Mapping[str, Protocol]] = {"block": Protocol.BLOCK, "synthetic": Protocol.SYNTHETIC}
"""Rules by vLLM's `rejection_sample_method`; every other one is the chain rule."""


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Folders of the target and of the drafts by name, the target's context and dtype, and the arm's adapters."""

    target: Path
    drafts: Mapping[str, Path]
    context: int
    dtype: str
    adapters: Mapping[str, Adapter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """One engine. Engines with the same `key` are the same.

    job: the driver's input: arguments, repair, model runner.
    requested: the requested settings by vLLM's names, for comparison with the effective ones.
    """

    python: str
    job: Mapping[str, Any]
    requested: Mapping[str, Any]
    logprobs: int | None
    silence_s: float
    start_s: float
    restarts: int
    engines: int
    """Number of engines at once; each holds the weights."""
    narrow: bool
    """One request at a time: any otherwise equal engine fits."""
    terms: RequestTerms = field(default_factory=RequestTerms)
    """Settings of the arm's requests, which engines do not differ by."""

    @property
    def key(self) -> str:
        """The engine's identity."""
        return json.dumps([self.python, self.job], sort_keys=True)

    @property
    def likeness(self) -> str:
        """The key without the number of requests."""
        arguments = {name: value for name, value in self.job["arguments"].items() if name != "max_num_seqs"}
        return json.dumps([self.python, {**self.job, "arguments": arguments}], sort_keys=True)


def setting_of(plan: EngineSpec, places: ModelFolders, extension: str = EXTENSION) -> VllmSettings:
    """The engine for a plan. Raises InvalidRequest: an unknown setting, or one that contradicts the plan."""
    given = dict(plan.engine)
    require_known("vLLM", "engine-vllm", given)
    dtype = given.get("dtype", places.dtype)
    if dtype not in DTYPES:
        raise InvalidRequest(f"models.target: vLLM has no dtype {dtype}; write one of {', '.join(DTYPES)}")
    asked = {
        "dtype": dtype,
        "enforce_eager": True,
        "max_model_len": places.context,
        "max_num_seqs": plan.rows,
        "seed": 0,
        "async_scheduling": False,
        **{name: value for name, value in given.items() if name not in OURS},
        **adapter_arguments(places.adapters),
        **structured_config(plan),
    }
    draft, script = (None, None) if plan.proposer is None else speculative(plan, places)
    arguments = {
        **asked,
        "model": str(places.target),
        "disable_log_stats": False,
        "worker_extension_cls": extension,
        "scheduler_cls": ASYNC_SCHEDULER if asked["async_scheduling"] else SCHEDULER,
    }
    if "kv_cache_gib" in given:
        arguments["kv_cache_memory_bytes"] = int(given["kv_cache_gib"] * GIB)
    if draft is not None:
        arguments |= {"speculative_config": draft, "per_request_spec_decode_metrics": "detailed"}
    job = {
        "op": "start",
        "arguments": arguments,
        "repair": given.get("repair"),
        "model_runner": given.get("model_runner", "auto"),
        "script": script,
    }
    return VllmSettings(
        python=given.get("python", sys.executable),
        job=job,
        requested=_requested(plan, asked, draft, given),
        logprobs=given.get("logprobs", 0),
        silence_s=given.get("timeout_s", 600),
        start_s=given.get("start_timeout_s", 900),
        restarts=given.get("restarts", 4),
        engines=given.get("engines", 2),
        narrow=plan.rows == 1 and "max_num_seqs" not in given,
        terms=terms_of(plan, places.adapters),
    )


def speculative(plan: EngineSpec, places: ModelFolders) -> tuple[dict[str, Any], str | None]:
    """`speculative_config`, and the file that a scripted proposer reads.

    Raises:
        InvalidRequest: a model too few or too many, or an option that the plan decides.
    """
    method, options = plan.proposer, dict(plan.options)
    script = options.pop("script", None)
    taken = [name for name in RESERVED if name in options]
    if taken:
        raise InvalidRequest(f"proposer.options.{taken[0]}: kind and gamma set this; remove it")
    if method in WITH_MODEL and plan.draft is None:
        raise InvalidRequest(f"proposer {method} needs a model; name one of the suite's models under model")
    if method in WITHOUT_MODEL and plan.draft is not None:
        raise InvalidRequest(f"proposer {method} drafts without a model; remove model")
    if method == "custom_class" and "model" not in options:
        raise InvalidRequest("proposer custom_class needs options: {model: module.Class}")
    if plan.others:
        raise InvalidRequest(f"proposer {method} drafts with one model; remove others")
    model = {} if plan.draft is None else {"model": str(places.drafts[plan.draft])}
    rule = {"rejection_sample_method": "block"} if plan.protocol is Protocol.BLOCK else {}
    config = {"method": method, "num_speculative_tokens": plan.gamma, **model, **options, **rule}
    return config, script


def _requested(
    plan: EngineSpec, asked: Mapping[str, Any], draft: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    runner = {"model_runner": given["model_runner"]} if given.get("model_runner", "auto") != "auto" else {}
    plain = {name: value for name, value in asked.items() if not isinstance(value, dict)} | requested_config(asked)
    if draft is None:
        return {**plain, **runner}
    drawn = {"draft_sample_method": "greedy"} if plan.proposer in DRAWING else {}
    models = {name: value for name, value in draft.items() if name != "model"}
    return {**plain, **runner, "rejection_sample_method": "standard", **drawn, **models}


def sampling_of(request: Request, logprobs: int | None) -> dict[str, Any]:
    """`SamplingParams` of a request; it omits those that are off, so that vLLM refuses only requested ones."""
    asked = request.sampling
    mapping: dict[str, Any] = {
        "temperature": asked.temperature,
        "max_tokens": asked.max_new_tokens,
        "ignore_eos": asked.ignore_eos,
        "logprobs": logprobs,
        "bad_words": [list(word) for word in asked.bad_words],
        "logit_bias": [list(bias) for bias in asked.logit_bias],
    }
    optional = {
        "top_k": (asked.top_k, 0),
        "top_p": (asked.top_p, 1.0),
        "min_p": (asked.min_p, 0.0),
        "repetition_penalty": (asked.repetition_penalty, 1.0),
        "presence_penalty": (asked.presence_penalty, 0.0),
        "frequency_penalty": (asked.frequency_penalty, 0.0),
        "min_tokens": (asked.min_tokens, 0),
        "stop": (list(asked.stop), []),
        "stop_token_ids": (list(asked.stop_token_ids), []),
        "seed": (None if asked.greedy else seed_of(request, 8), None),
        "structured_outputs": (None if asked.structured is None else structured_params(asked.structured), None),
    }
    return mapping | {name: value for name, (value, off) in optional.items() if value != off}


def outside(engine: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """Access by these engine settings and proposer options."""
    return (*_code(engine, options), *_files(engine, options))


def _code(engine: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[OutsideAccess]:
    if "python" in engine:
        yield OutsideAccess(OutsideKind.PROGRAM, str(engine["python"]), "engine.python")
    if engine.get("trust_remote_code"):
        yield OutsideAccess(OutsideKind.CODE, "trust_remote_code", "engine.trust_remote_code")
    for name in engine.get("logits_processors", ()):
        yield OutsideAccess(OutsideKind.CODE, str(name), "engine.logits_processors")
    for key in engine.get("compilation_config", {}):
        if key not in HARMLESS:
            yield OutsideAccess(OutsideKind.CODE, f"compilation_config.{key}", f"engine.compilation_config.{key}")
    model = options.get("model")
    if model is not None and not str(model).startswith(HOOKS):
        yield OutsideAccess(OutsideKind.CODE, str(model), "proposer.options.model")


def _files(engine: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[OutsideAccess]:
    for name, source in engine.get("adapters", {}).items():
        if not str(source).startswith(MADE):
            yield OutsideAccess(OutsideKind.FILE, str(source), f"engine.adapters.{name}")
    if options.get("script") is not None:
        yield OutsideAccess(OutsideKind.FILE, str(options["script"]), "proposer.options.script")


def answer_level(logprobs: int | None) -> int:
    """The evidence level of the answers alone."""
    return 0 if logprobs is None else 1


def level_of(record: RecordLevel, logprobs: int | None) -> int:
    """The evidence level of a record from working hooks."""
    return max(LEVELS[record].level, answer_level(logprobs))


def rule_of(asked: Protocol, method: str | None) -> Protocol:
    """The rule that verifies; vLLM without a draft samples from p, which is the chain rule with nothing drafted."""
    return Protocol.GREEDY if asked is Protocol.GREEDY else RULES.get(method or "", Protocol.CHAIN)


def arm_evidence(settings: ArmSettings) -> ArmEvidence:
    """One arm's evidence, by its settings."""
    plan = settings.plan
    logprobs = plan.engine.get("logprobs", 0)
    answers = frozenset((Part.LOGPROBS,)) if logprobs is not None else frozenset()
    asked = plan.options.get("rejection_sample_method", "block" if plan.protocol is Protocol.BLOCK else None)
    probabilistic = plan.options.get("draft_sample_method") == "probabilistic"
    return ArmEvidence(
        decoder=LoopOwner.FOREIGN,
        level=level_of(plan.level, logprobs),
        parts=LEVELS[plan.level].parts | answers,
        protocol=rule_of(plan.protocol, asked),
        lossless=asked != "synthetic",
        drawn=plan.proposer in DRAWING and probabilistic and not settings.greedy,
    )


DECLARED: Final = Declaration(LoopOwner.FOREIGN, LEVELS, arm_evidence)
