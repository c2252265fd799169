"""A shard: the part of a run's requests that one process or machine decodes, as the run of the part records it.

Every arm of such a run states its shard, so its hashes cover it. No check reads a shard: a claim is about the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from audit.errors import UserError
from audit.store import StoredRun

SHARD: Final = "shard"
"""The key of a shard in an arm's specification."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` of `of`, from 1. `totals` is the number of requests of the whole run, by arm."""

    index: int
    of: int
    totals: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """INDEX/OF, the form of the option."""
        return f"{self.index}/{self.of}"

    def document(self, arm: str) -> dict[str, int]:
        """The record of the shard in an arm's specification."""
        return {"index": self.index, "of": self.of, "requests": self.totals[arm]}


def shard_of(run: StoredRun) -> Shard | None:
    """The shard that a run is; None for a whole run."""
    mapping: dict[str, Mapping[str, Any]] = {arm.name: arm.spec[SHARD] for arm in run.arms if SHARD in arm.spec}
    first = next(iter(mapping.values()), None)
    if first is None:
        return None
    return Shard(first["index"], first["of"], {name: item["requests"] for name, item in mapping.items()})


def require_whole(run: StoredRun) -> None:
    """Raise UserError if the run is a shard: checks read whole runs."""
    shard = shard_of(run)
    if shard is not None:
        raise UserError(
            f"run {run.ulid} is shard {shard.name}, a part that no check reads; join the shards: "
            f"audit join {' '.join(_placeholders(shard))}"
        )


def _placeholders(shard: Shard) -> list[str]:
    """Names for the user to replace by runs or bundles, at most three."""
    names = [f"SHARD{index}" for index in range(1, shard.of + 1)]
    return names if shard.of <= 3 else [names[0], names[1], "...", names[-1]]
