"""Any JSON object: the attachment is under its key `audit`.

Its models are the texts under `model` or `model_name`, at the top or under `eval`, where Inspect's logs name theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.attach.interface import JsonReport


def _recognises(report: Any) -> bool:
    return isinstance(report, Mapping)


def _models(report: Mapping[str, Any]) -> tuple[str, ...]:
    own = report.get("eval")
    places = (report, own) if isinstance(own, Mapping) else (report,)
    named = (place.get(key) for place in places for key in ("model", "model_name"))
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


FORMAT = JsonReport("json", (), _recognises, _models)
