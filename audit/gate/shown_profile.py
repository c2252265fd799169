"""The serving profile of a recorded run: what its candidate arms were asked, and how they ran."""

from dataclasses import asdict, fields
from typing import Any

from audit.errors import CannotDecide
from audit.evidence.coverage.count import ScopeCount
from audit.gate.facts import workload_of
from audit.gate.serving_profile import DeployedScope, SampledSetting
from audit.store import Store


def shown_profile(store: Store, run: str) -> dict[str, Any]:
    """The document of a serving profile; where arms differ, the largest batch, draft and length.

    Raises:
        CannotDecide: no candidate arm of the run answered a request.
    """
    settings: dict[SampledSetting, None] = {}
    words: set[str] = set()
    scopes: list[DeployedScope] = []
    for arm in store.load_run(run).candidates:
        record, count = store.load_arm(run, arm.name), ScopeCount()
        done = workload_of(record)
        settings |= dict.fromkeys(part.setting for part in done.sampled)
        words |= {"greedy"} if done.greedy else set()
        for request in record.keeping().requests:
            count.add(request)
            header = request.trace.header
            filters = (header.facts.get("stream") or {}).get("filters")
            asked = {"structured": header.sampling.structured, "tools": header.facts.get("tools"), "filters": filters}
            words |= {word for word, given in asked.items() if given}
        seen = count.scope(arm.effective)
        longest = (seen.largest_batch, seen.longest_draft)
        scopes.append(DeployedScope(*longest, seen.shape, seen.numerics, seen.device, done.longest or None))
    serves: dict[str, Any] = dict.fromkeys(sorted(words), True)
    if settings:
        serves["sampled"] = {"settings": [_changed(setting) for setting in settings]}
    if not serves:
        raise CannotDecide(f"run {run}: no candidate arm answered a request")
    parts = {part.name: [getattr(scope, part.name) for scope in scopes] for part in fields(DeployedScope)}
    return {"version": 1, "serves": serves, "deployed": {name: top for name, of in parts.items() if (top := _most(of))}}


def _changed(setting: SampledSetting) -> dict[str, Any]:
    """The parameters that are on."""
    off = asdict(SampledSetting(-1.0))
    return {name: value for name, value in asdict(setting).items() if value != off[name]}


def _most(values: list[Any]) -> Any:
    """The largest number, or the one word of all arms; None where arms differ or nobody knows."""
    known = {value for value in values if value is not None}
    if all(isinstance(value, int) for value in known):
        return max(known, default=None)
    return known.pop() if len(known) == 1 else None
