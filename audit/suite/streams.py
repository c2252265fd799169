"""The requests of a suite and their random streams; no two may share one."""

from __future__ import annotations

from dataclasses import dataclass

from audit.errors import UserError
from audit.suite.spec import Case, Suite
from engine.sampling.rng import stream_of


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """One request of an arm: a case and a sample number."""

    case: Case
    sample: int

    @property
    def stream(self) -> int:
        """The random stream: equal in every arm, different for every case and sample."""
        return stream_of(f"{self.case.id}#{self.sample}")


def require_streams(suite: Suite) -> None:
    """Reject a suite if two requests of an arm would draw the same random numbers.

    Pooled tests need independent requests: with shared numbers they reject clean engines or miss faults.

    Raises:
        UserError: two requests share a stream; the message names the first two.
    """
    first: dict[int, RequestSlot] = {}
    for case in suite.cases:
        for sample in case.repetitions(suite.samples):
            slot = RequestSlot(case, sample)
            other = first.setdefault(slot.stream, slot)
            if other is not slot:
                names = f"{other.case.id}#{other.sample} and {case.id}#{sample}"
                raise UserError(
                    f"{suite.path}: requests {names} would share seed {suite.seed} and stream {slot.stream}; "
                    "give one of the cases another id"
                )
