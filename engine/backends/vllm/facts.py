"""The effective configuration of an arm, from the facts that its engine reports at the start.

The configuration holds the requested settings and those that the driver read from the running objects: a setting that
vLLM ignores appears as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.local_target import LocalTarget
from engine.backends.vllm import evidence
from engine.backends.vllm.features import adapter_facts
from engine.backends.vllm.options import VllmSettings
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import Effective, LoopOwner, stated

READ: Final = ("rejection_sample_method", "draft_sample_method", "model_runner")
"""Read from the objects that do the work, because vLLM's configuration keeps settings that it ignores."""


def evidence_problems(facts: Mapping[str, Any]) -> list[str]:
    """The reasons to reject the hooks' records."""
    return [*facts["worker"]["problems"], *facts["scheduler"]]


def level_of(record: RecordLevel, facts: Mapping[str, Any], setting: VllmSettings) -> int:
    """The arm's evidence level: that of the answers alone if the hooks could not be installed."""
    if evidence_problems(facts):
        return evidence.answer_level(setting.logprobs)
    return evidence.level_of(record, setting.logprobs)


def rule_of(plan: EngineSpec, facts: Mapping[str, Any]) -> Protocol:
    """The rule that verifies, as the running sampler has it."""
    return evidence.rule_of(plan.protocol, facts["worker"]["rejection_sample_method"])


def is_lossless(facts: Mapping[str, Any]) -> bool:
    """True if the running rule keeps the target's law."""
    return bool(facts["worker"]["rejection_sample_method"] != "synthetic")


def effective_of(plan: EngineSpec, setting: VllmSettings, facts: Mapping[str, Any], target: LocalTarget) -> Effective:
    """The effective configuration."""
    worker, settings = facts["worker"], facts["settings"]
    problems = evidence_problems(facts)
    speculative = settings["speculative"] or {}
    read = {name: worker[name] for name in READ if worker[name] is not None}
    # the draft has settings with the target's names, which are not the requested ones
    runs = {**speculative, **settings["engine"], **read}
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
        "requested": dict(setting.requested),
        "effective": {name: runs[name] for name in setting.requested if name in runs},
        "evidence": {"level": level_of(plan.level, facts, setting), "problems": problems},
    }
    return stated(LoopOwner.FOREIGN, document)
