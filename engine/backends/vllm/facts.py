"""The effective configuration of an arm, from what its engine said when it started.

What the driver read from the running objects stands against what was asked
for: a setting that vLLM ignores shows as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.local_target import LocalTarget
from engine.backends.vllm.options import VllmSettings
from engine.core.types import Protocol, RecordLevel

LEVELS: Final = {RecordLevel.TOKENS: 0, RecordLevel.SCALARS: 1, RecordLevel.TOPK: 3, RecordLevel.FULL: 3}
"""Evidence level of each record level: the engine's random numbers are not shown."""
READ: Final = ("rejection_sample_method", "draft_sample_method", "model_runner")
"""Read from the objects that do it, because vLLM's configuration keeps what it ignores."""


def evidence_problems(facts: Mapping[str, Any]) -> list[str]:
    """What keeps the witnesses from being believed."""
    return [*facts["worker"]["problems"], *facts["scheduler"]]


def level_of(record: RecordLevel, facts: Mapping[str, Any], setting: VllmSettings) -> int:
    """The arm's evidence level."""
    told = 0 if setting.logprobs is None else 1
    if evidence_problems(facts):
        return told
    return max(LEVELS[record], told)


def rule_of(plan: EngineSpec, facts: Mapping[str, Any]) -> Protocol:
    """The rule that verifies; vLLM without a draft samples from p, which is the chain rule with nothing drafted."""
    runs = facts["worker"]["rejection_sample_method"]
    if plan.protocol is Protocol.GREEDY:
        return Protocol.GREEDY
    return {"block": Protocol.BLOCK, "synthetic": Protocol.SYNTHETIC}.get(runs, Protocol.CHAIN)


def effective_of(
    plan: EngineSpec, setting: VllmSettings, facts: Mapping[str, Any], target: LocalTarget
) -> dict[str, Any]:
    """What runs. JSON-able."""
    worker, settings = facts["worker"], facts["settings"]
    problems = evidence_problems(facts)
    speculative = settings["speculative"] or {}
    read = {name: worker[name] for name in READ if worker[name] is not None}
    # the draft has settings of the target's names, which are not what was asked for
    runs = {**speculative, **settings["engine"], **read}
    return {
        "backend": "vllm",
        "target": dict(target.facts("target").manifest["facts"]),
        "proposer": "plain" if plan.proposer is None else speculative.get("method"),
        "gamma": speculative.get("num_speculative_tokens", 0),
        "protocol": rule_of(plan, facts).value,
        "lossless": worker["rejection_sample_method"] != "synthetic",
        "rows": plan.rows,
        "record": plan.level.value,
        "fault": plan.fault,
        "engine": settings["engine"],
        "speculative": settings["speculative"],
        "worker": {name: value for name, value in worker.items() if name not in ("problems", "steps", "seconds")},
        "repair": setting.job["repair"],
        "installed": facts["installed"],
        "requested": dict(setting.requested),
        "effective": {name: runs[name] for name in setting.requested if name in runs},
        "evidence": {"level": level_of(plan.level, facts, setting), "problems": problems},
    }
