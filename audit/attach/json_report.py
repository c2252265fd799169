"""Any JSON object, with the attachment under its key `audit`, and any other file.

Its models are the texts under `model` or `model_name`, at the top or under `eval`, where Inspect's logs name theirs.
"""

from collections.abc import Mapping
from typing import Any

from audit.attach.interface import JsonReport, PlainFile

FILE = PlainFile("file", lambda name, report: not name.endswith(".json"))  # noqa: ARG005 - the interface's signature
"""Any file: Markdown, HTML, PDF, a table. A statement alone binds it; broken JSON is refused."""


def _models(report: Mapping[str, Any]) -> tuple[str, ...]:
    own = report.get("eval")
    places = (report, own) if isinstance(own, Mapping) else (report,)
    named = (place.get(key) for place in places for key in ("model", "model_name"))
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


FORMAT = JsonReport("json", (), lambda report: isinstance(report, Mapping), _models)
