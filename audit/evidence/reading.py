"""One request of an arm as several checks read it: what more than one of them needs is computed once."""

from functools import cached_property

from audit.evidence.decisions import Decisions, decisions, unreadable_request
from audit.evidence.records import ArmRecord, RequestRecord
from audit.evidence.structure import Violation, structure_faults
from engine.record.columns import shape_fault


class RequestReading:
    """One request, whose trace is decoded at most once.

    Args:
        request: the request.
        arm: its arm, of which a reading uses no request.
    """

    def __init__(self, request: RequestRecord, arm: ArmRecord) -> None:
        self.request, self.arm = request, arm

    @cached_property
    def shape_fault(self) -> str | None:
        """The first way in which the trace's columns contradict each other."""
        return shape_fault(self.request.trace)

    @cached_property
    def structure_faults(self) -> tuple[Violation, ...]:
        """Contradictions between the tokens; the trace is well-formed."""
        return tuple(structure_faults(self.request))

    @cached_property
    def unreadable(self) -> str | None:
        """Why the laws behind the tokens are not on record, as rows or on cells."""
        return unreadable_request(self.request, cells=True, shape_of=lambda _: self.shape_fault)

    @cached_property
    def decisions(self) -> Decisions:
        """The laws behind the tokens; the trace is readable."""
        return decisions(self.request)
