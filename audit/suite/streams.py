"""The requests of a suite and the random stream of each: no two may share one."""

from __future__ import annotations

from dataclasses import dataclass

from audit.errors import UserError
from audit.suite.spec import Case, Suite
from engine.sampling.rng import stream_of


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """One request of an arm: which case, which repetition."""

    case: Case
    sample: int

    @property
    def stream(self) -> int:
        """The random stream: the same in every arm, another for every case and repetition."""
        return stream_of(f"{self.case.id}#{self.sample}")


def require_streams(suite: Suite) -> None:
    """Refuse a suite of which two requests of an arm would draw the same random numbers.

    Pooled tests need independent requests: with shared numbers they reject clean engines or miss faults.

    Raises:
        UserError: the first two such requests.
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
