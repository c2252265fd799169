"""Bind evidence to evaluation reports by formats of reports.

To add a format, add one file and one line in `REGISTRY`. The first format that recognises a report is used.
"""

from collections.abc import Mapping
from typing import Final

REGISTRY: Final[Mapping[str, str]] = {
    "inspect": "audit.attach.inspect_log:FORMAT",
    "junit": "audit.attach.junit:FORMAT",
    "model_card": "audit.attach.model_card:FORMAT",
    "eval_results": "audit.attach.eval_results:FORMAT",
    "lm_eval_samples": "audit.attach.lm_eval:SAMPLES",
    "cyclonedx": "audit.attach.cyclonedx:FORMAT",
    "lm_eval": "audit.attach.lm_eval:FORMAT",
    "json": "audit.attach.json_report:FORMAT",
    "file": "audit.attach.json_report:FILE",
}
