"""Writes a suite of one arm as files that load as the same suite: YAML, and one prompt file per workload.

Default values are omitted.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from audit.evidence.coverage.rule import DEFAULT_FLOORS, CoverageRule
from audit.minimize.shrink import DEFAULTS
from audit.suite.prompts import TEMPLATE
from audit.suite.spec import CandidateSpec, Case, ProposerSpec, Suite
from audit.text.documents import yaml_text
from engine.backends import REGISTRY
from engine.backends.engine_spec import ModelSource
from engine.core.structured import ConstraintSpec
from engine.core.types import SamplingParams
from engine.stream.interface import FilterSpec

SUITE_FILE: Final = "suite.yaml"


def files_of(suite: Suite, head: str = "") -> dict[str, bytes]:
    """File names and contents; `head` is a one-line comment for the top of the YAML."""
    comment = f"# {head}\n" if head else ""
    return {SUITE_FILE: (comment + yaml_text(document_of(suite))).encode()} | {
        f"{name}.jsonl": _rows(suite, name).encode() for name in _workloads(suite)
    }


def document_of(suite: Suite) -> dict[str, Any]:
    """The suite's YAML as JSON values."""
    return {
        "version": 1,
        "name": suite.name,
        **({"description": suite.description} if suite.description else {}),
        "backend": suite.backend,
        **({"engine": dict(suite.engine)} if suite.engine else {}),
        "seed": suite.seed,
        "batch_size": suite.batch_size,
        **({"mixed": suite.mixed} if suite.mixed != REGISTRY[suite.backend].ours else {}),
        "models": {name: _model(spec) for name, spec in suite.models.items()},
        "workloads": [{"name": name, "prompts": f"{name}.jsonl"} for name in _workloads(suite)],
        "arms": [_arm(arm) for arm in suite.arms],
    }


def _workloads(suite: Suite) -> tuple[str, ...]:
    return tuple(dict.fromkeys(case.workload for case in suite.cases))


def _rows(suite: Suite, workload: str) -> str:
    return "".join(json.dumps(_row(case)) + "\n" for case in suite.cases if case.workload == workload)


def _row(case: Case) -> dict[str, Any]:
    form: dict[str, Any] = {"tokens": list(case.tokens)} if case.tokens else {"prompt": case.prompt}
    if case.messages:
        form = {"messages": list(case.messages)} | ({TEMPLATE: dict(case.template)} if case.template else {})
    if case.tools:
        form |= {"tools": list(case.tools), "tool_choice": case.tool_choice}
    if case.structured is not None:
        form["structured"] = {case.structured.kind.value: case.structured.value}
    row = {"id": case.id.removeprefix(f"{case.workload}/"), **form, "domain": case.domain}
    return row if case.samples is None else {**row, "samples": list(case.samples)}


def _model(spec: ModelSource) -> dict[str, Any]:
    plain = dataclasses.asdict(ModelSource(spec.source))
    given = dataclasses.asdict(spec)
    return {key: value for key, value in given.items() if key == "source" or value != plain[key]}


def _arm(arm: CandidateSpec) -> dict[str, Any]:
    return {
        "name": arm.name,
        "proposer": _proposer(arm.proposer),
        "verifier": {"kind": arm.verifier.value, **arm.verifier_options}
        if arm.verifier_options
        else arm.verifier.value,
        "sampling": sampling_of(arm.sampling),
        **({"record": arm.record.value} if arm.requested_record is None else {}),
        "checks": {name: dict(params) for name, params in arm.checks.items()},
        **({"engine": dict(arm.engine)} if arm.engine else {}),
        **({"coverage": _coverage(arm.coverage)} if arm.coverage != DEFAULT_FLOORS else {}),
        **({"beside": sampling_of(arm.beside)} if arm.beside is not None else {}),
        **({"cancel_beside": arm.cancel_beside} if arm.cancel_beside else {}),
        **({"stream": True, "filters": list(map(_filter, arm.stream.filters))} if arm.stream is not None else {}),
        **({"fault": arm.fault} if arm.fault else {}),
    }


def _coverage(rule: CoverageRule) -> dict[str, Any]:
    return {
        **({"least": rule.least} if rule.least != DEFAULT_FLOORS.least else {}),
        **({"waive": list(rule.waive)} if rule.waive else {}),
        **({"demand": list(rule.demand)} if rule.demand else {}),
        **({} if rule.directed else {"directed": "off"}),
    }


def _filter(spec: FilterSpec) -> dict[str, Any]:
    """A filter with its rules in the suite itself."""
    return {"kind": spec.kind, "side": spec.side.value, "action": spec.action.value, "options": dict(spec.document)}


def sampling_of(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters that are not at their defaults; the seed is the suite's."""
    given = {name: getattr(params, name) for name in DEFAULTS if name != "seed"}
    return {name: _listed(value) for name, value in given.items() if value != DEFAULTS[name]}


def _proposer(proposer: ProposerSpec) -> Mapping[str, Any]:
    return {
        "kind": proposer.kind,
        **({"model": proposer.model} if proposer.model else {}),
        **({"others": list(proposer.others)} if proposer.others else {}),
        "gamma": proposer.gamma,
        **({"options": dict(proposer.options)} if proposer.options else {}),
    }


def _listed(value: Any) -> Any:
    if isinstance(value, ConstraintSpec):
        return value.document()
    return [_listed(item) for item in value] if isinstance(value, tuple) else value
