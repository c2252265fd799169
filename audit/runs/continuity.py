"""Requests that a resumed arm decodes so that the remaining ones come out as in an uninterrupted run.

Streams, prompts and order follow from the suite. What a request does not carry itself is its batch and the state of
drafts that learn or remember. Where either matters, the arm is decoded again from its beginning, in the same order and
batches, and the stored requests must come again. Cannot help: other engines, whose batches cannot be repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from audit.evidence.promises import keeps
from audit.evidence.records import ArmRecord
from audit.runs.prepare import PreparedArm
from audit.store import RequestKey
from engine.core.errors import EngineError
from engine.core.sequences import agreeing
from engine.core.types import Generation, Request
from engine.record.effective import LoopOwner


@dataclass(frozen=True, slots=True)
class Remaining:
    """The requests to decode, in order, and the tokens of those that are stored already, by request name."""

    arm: str
    requests: Sequence[Request]
    stored: Mapping[str, tuple[int, ...]]

    def require_same(self, generation: Generation) -> None:
        """Require that a stored request came out as stored.

        Raises:
            EngineError: it did not, so the rest of the arm would not continue the run that began.
        """
        name, before = generation.request.id, self.stored[generation.request.id]
        if generation.tokens != before:
            at = agreeing(before, generation.tokens)
            raise EngineError(
                f"request {name}, decoded again to continue arm {self.arm}, differs from token {at} on; "
                "start a new run, or resume on the machine and with the packages that began this one"
            )


def remaining(arm: PreparedArm, finished: frozenset[RequestKey], load_arm: Callable[[str], ArmRecord]) -> Remaining:
    """Requests left to decode after the finished ones."""
    missing = [request for key, request in arm.requests.items() if key not in finished]
    name = arm.planned.name
    if not missing or len(missing) == len(arm.requests) or not starts_again(arm):
        return Remaining(name, missing, {})
    record = load_arm(name)
    stored = {request.request_id: request.tokens for request in chain(record.requests, record.failed, record.refused)}
    return Remaining(name, list(arm.requests.values()), stored)


def starts_again(arm: PreparedArm) -> bool:
    """True if the missing requests depend on more than themselves."""
    effective = arm.effective
    if arm.planned.kind.reads or effective.decoder is not LoopOwner.OWN or effective.origin is not None:
        return False
    if arm.engine.memory() is not None or effective.draft_version is not None:
        return True
    promises = None if effective.numerics is None else effective.numerics.promises
    return (effective.rows or 1) > 1 and not keeps(promises, effective.proposer_shape or "chain")
