"""Any JSON object: the attachment is under its key `audit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.attach.interface import ReportFormat


def _recognises(report: Any) -> bool:
    return isinstance(report, Mapping)


FORMAT = ReportFormat("json", (), _recognises)
