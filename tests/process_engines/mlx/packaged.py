"""Packaged suites with the interpreter that has mlx_lm, run by the command line here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.engine_suites import ROOT, verdicts


def judged(out: Path, name: str, python: str) -> Any:
    """The exit code, and verdicts and findings by arm and check, of `suites/mlx/NAME.yaml`."""
    place = ROOT / "suites" / "mlx" / f"{name}.yaml"
    suite = out / f"{name}.yaml"
    text = place.read_text("utf-8").replace(" ../", f" {place.parents[1]}/")
    suite.write_text(yaml.safe_dump(with_python(yaml.safe_load(text), python)))
    return verdicts(out, suite, "--allow-engine-python", python)


def with_python(document: dict[str, Any], python: str) -> dict[str, Any]:
    """The suite with an interpreter for its engine, in the arms too that have settings of their own."""
    arms = [
        {**arm, "engine": {"python": python, **arm["engine"]}} if "engine" in arm else arm for arm in document["arms"]
    ]
    return {**document, "engine": {"python": python, **document.get("engine", {})}, "arms": arms}
