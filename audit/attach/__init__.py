"""Bind evidence to evaluation reports, one file per report format.

To add a format, add one file and one line in `REGISTRY`. The first format that
recognises a report is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REGISTRY: Final[Mapping[str, str]] = {
    "lm_eval": "audit.attach.lm_eval:FORMAT",
    "json": "audit.attach.json_report:FORMAT",
}
