"""Known defects of other engines stand beside the faults that they fit, and beside no other."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import Verdict
from audit.report.tables.known_defects import DEFECTS, defect_lines
from audit.store import ArmCounts, StoredArm, StoredCheck
from engine.record.effective import Effective


def arm(
    name="a",
    *,
    version="0.32.0",
    device="cpu",
    repair=None,
    drafted="greedy",
    rule="standard",
    fault=None,
    method="ngram",
    adapters=None,
    **spec,
):
    effective = {
        "backend": "vllm",
        "installed": {"version": version},
        "speculative": {"method": method},
        "adapters": adapters,
        "worker": {"device": device, "model_runner": "v1", "draft_sample_method": drafted},
        "repair": repair,
        "requested": {"rejection_sample_method": rule},
    }
    sampling = {"temperature": 0.8, **spec}
    given = {"sampling": sampling, "fault": fault}
    return StoredArm(name, ArmKind.CANDIDATE, Level.L3, True, given, Effective.from_json(effective), ArmCounts())


def check(name, verdict=Verdict.FAULT, of="a"):
    numbers = (None,) * 5
    return StoredCheck(of, name, "claim", Level.L3, verdict, 1, *numbers, "", (), {}, datetime.now(UTC))


@pytest.mark.parametrize(
    ("given", "fault", "word"),
    [
        (arm(), "honoured", "vllm-project/vllm#55005"),
        (arm(top_k=5), "liveness", "top_k ends the engine"),
        (arm(repair="expand", min_tokens=4), "honoured", "repair: min_tokens"),
        (arm(temperature=0, min_tokens=4), "greedy_equality", "masks end tokens"),
        (arm(rule="block"), "configuration", "has the standard rule only"),
        (arm(repair="all", drafted="probabilistic"), "seed", "a generator that no request's seed sets"),
        (arm(repair="all", drafted="probabilistic", structured={"regex": "a+"}), "law", "a grammar forbids"),
        (arm(repair="expand", adapters={"one": {}}), "logprob_closeness", "vllm-project/vllm#48421"),
        (arm(repair="expand", adapters={"one": {}}, method="eagle"), "liveness", "repair: shared_embedding"),
    ],
)
def test_a_defect_that_fits_is_named(given, fault, word):
    lines = [line for line in defect_lines([given], [check(fault)]) if word in line]
    (line,) = lines
    assert f"fits a ({fault})" in line


@pytest.mark.parametrize(
    "given",
    [arm(version="0.33.0"), arm(device="cuda:0"), arm(repair="all"), arm(temperature=0), arm(fault="kv_residue")],
)
def test_another_version_device_or_setting_has_no_known_defect(given):
    assert defect_lines([given], [check("honoured")]) == []


def test_only_faults_are_explained():
    others = [check("honoured", Verdict.CERTIFIED), check("law", Verdict.INCONCLUSIVE), check("reconciliation")]
    assert defect_lines([arm()], others) == []


def test_several_arms_share_a_line():
    lines = defect_lines([arm("a"), arm("b")], [check("law"), check("honoured"), check("honoured", of="b")])
    assert len(lines) == 1
    assert "fits a (honoured, law), b (honoured); engine: {repair: expand}" in lines[0]


def test_every_known_defect_has_checks_and_a_report():
    from audit import checks

    for defect in DEFECTS:
        assert defect.checks <= set(checks.names())
        assert defect.upstream
