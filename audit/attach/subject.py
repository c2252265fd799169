"""Compares a report's models with a run's, and tells whether the run generated its answers.

Names are compared, because a report holds no digests. Two names agree if the shorter one is the end of the longer one
by components (`org/llama` and `llama`); of a path on disk only the last component counts. Cannot see: other weights
under the same name, and a report that names another model than it used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.store import StoredRun

TARGET: Final = "target"
SCHEMES: Final = ("hf:", "bundled:", "served:", "scripted:")


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The names in the report, those of the run's target, and whether they agree; None if the report names none."""

    report: tuple[str, ...]
    run: tuple[str, ...]
    agree: bool | None


def compare_models(named: Sequence[str], run: StoredRun) -> ModelComparison:
    """Compare the report's names with the target's: its source, and the name under which a server lists it."""
    sources = [used.name for used in run.artifacts if used.role == TARGET]
    served = [arm.effective.in_effect.get("model") for arm in run.arms]
    own = tuple(dict.fromkeys((*sources, *(name for name in served if isinstance(name, str)))))
    agree = all(any(same_model(name, other) for other in own) for name in named) if named else None
    return ModelComparison(tuple(named), own, agree)


def same_model(left: str, right: str) -> bool:
    """True if one name is the end of the other."""
    ours, theirs = _components(left), _components(right)
    count = min(len(ours), len(theirs))
    return bool(count) and ours[-count:] == theirs[-count:]


def _components(name: str) -> list[str]:
    for scheme in SCHEMES:
        name = name.removeprefix(scheme)
    whole = [part.lower() for part in name.partition("@")[0].replace("\\", "/").split("/")]
    parts = [part for part in whole if part]
    on_disk = whole[:1] in ([""], ["."], [".."], ["~"]) or len(parts) > 2
    return parts[-1:] if on_disk else parts


def is_own_document(report: Any, run: StoredRun) -> bool:
    """True if the report is a results document of this run, by identifier and record root; else it is not known."""
    own = report.get("run") if isinstance(report, Mapping) else None
    if not isinstance(own, Mapping) or run.record_root is None:
        return False
    return (own.get("ulid"), own.get("record_root")) == (run.ulid, run.record_root)
