"""Results of lm-evaluation-harness (`results_*.json`): the attachment is under `config.audit`.

The harness keeps the model's own metadata under `config`: `model` is the kind of model, `model_args` names it, as a
text `key=value,...` or as an object. Samples (`samples_TASK_*.jsonl`) are one row per document, without a place for
evidence.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from audit.attach.interface import JsonReport, PlainFile

NAMING: Final = ("pretrained", "model", "path", "peft", "delta")
"""Arguments that name a model or what is added to it."""
COLUMNS: Final = frozenset({"doc_id", "doc_hash", "resps"})


def _recognises(report: Any) -> bool:
    return (
        isinstance(report, Mapping)
        and isinstance(report.get("results"), Mapping)
        and isinstance(report.get("config"), Mapping)
        and bool({"versions", "n-shot", "configs"} & report.keys())
    )


def _models(report: Mapping[str, Any]) -> tuple[str, ...]:
    arguments = report["config"].get("model_args")
    if isinstance(arguments, str):
        pairs = (part.partition("=") for part in arguments.split(","))
        arguments = {key.strip(): value.strip() for key, _, value in pairs}
    given = arguments if isinstance(arguments, Mapping) else {}
    named = [given.get(key) for key in NAMING]
    if not any(named):
        named = [report.get("model_name")]
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name))


FORMAT = JsonReport("lm_eval", ("config",), _recognises, _models)


def _fits(name: str, report: bytes) -> bool:
    if not name.endswith(".jsonl"):
        return False
    try:
        first = json.loads(report.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.keys() >= COLUMNS


SAMPLES = PlainFile("lm_eval_samples", _fits)
