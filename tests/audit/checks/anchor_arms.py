"""An anchor arm for a simulated or scripted candidate: the world's own rows on its tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from engine.backends.native.scripted import VOCABULARY
from engine.core.types import Protocol, RecordLevel, Request
from engine.models.passes.reference_pass import ScriptedReference, anchored
from engine.models.scripted import table_script
from engine.record.effective import Effective
from engine.record.trace import decode
from tests.audit.checks.simulator import arm


def world_reference(world) -> ScriptedReference:
    return ScriptedReference(lambda prefix: world.target[prefix[-1]].astype(np.float64), {})


def scripted_reference(seed=1) -> ScriptedReference:
    return ScriptedReference(table_script(seed, VOCABULARY), {})


def anchor_arm(candidate: ArmRecord, reference, level=RecordLevel.FULL) -> ArmRecord:
    """The reference's rows on every request of the candidate."""
    records = []
    for each in candidate.requests:
        old = each.trace.header
        header = replace(old, level=level, protocol=Protocol.GUMBEL, proposer="given", request=f"anchor/{old.request}")
        request = Request(header.request, old.prompt, old.sampling, old.stream)
        made = anchored(reference, request, each.tokens, header, lambda tokens: "")
        records.append(replace(each, request_id=header.request, trace=decode(made.trace)))
    return ArmRecord("anchor", ArmKind.ANCHOR, Level.L2, Effective(), tuple(records))


def beside_the_target(requests, world, level=RecordLevel.FULL) -> Evidence:
    """The requests of an endpoint, with the target's rows on their tokens."""
    candidate = ArmRecord("served", ArmKind.CANDIDATE, Level.L0, Effective(), tuple(requests))
    return Evidence(candidate, None, None, {ArmKind.ANCHOR: anchor_arm(candidate, world_reference(world), level)})


def simulated(world, setup, requests, tag="case") -> Evidence:
    """A simulated candidate with its anchor and a plain baseline."""
    candidate = arm(world, setup, requests, tag)
    baseline = arm(world, replace(setup, draft="none", fault=""), requests, tag, ArmKind.BASELINE)
    return Evidence(candidate, baseline, None, {ArmKind.ANCHOR: anchor_arm(candidate, world_reference(world))})
