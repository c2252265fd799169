"""Results of lm-evaluation-harness (`results_*.json`): the attachment is under `config.audit`.

The harness keeps the model's own metadata under `config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.attach.interface import ReportFormat


def _recognises(report: Any) -> bool:
    return (
        isinstance(report, Mapping)
        and isinstance(report.get("results"), Mapping)
        and isinstance(report.get("config"), Mapping)
        and bool({"versions", "n-shot", "configs"} & report.keys())
    )


FORMAT = ReportFormat("lm_eval", ("config",), _recognises)
