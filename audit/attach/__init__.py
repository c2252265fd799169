"""Bind evidence to evaluation reports, one file per report format.

A format is added by one file and one line in `REGISTRY`; the first that
recognises a report is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REGISTRY: Final[Mapping[str, str]] = {
    "lm_eval": "audit.attach.lm_eval:FORMAT",
    "json": "audit.attach.json_report:FORMAT",
}
