"""A loop's arrivals by the number of steps: requests that join and leave while it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.decode.arrivals import Withdrawal


@dataclass
class Schedule:
    """Requests by the step after which they come, and those that leave after some of their steps."""

    coming: dict[int, list]
    leaving: dict[str, int] = field(default_factory=dict)
    call: str = "schedule"
    step: int = 0
    waiting: deque = field(default_factory=deque)
    seen: dict[str, list] = field(default_factory=dict)
    done: list = field(default_factory=list)

    def _now(self):
        for number in [number for number in self.coming if number <= self.step]:
            self.waiting.extend(self.coming.pop(number))

    def take(self):
        self._now()
        return self.waiting.popleft() if self.waiting else None

    def wait(self):
        self.step = min(self.coming, default=self.step)
        self._now()
        return bool(self.waiting)

    def withdrawn(self, request):
        steps = len(self.seen.get(request.id, ()))
        return Withdrawal("timeout", "gone") if steps >= self.leaving.get(request.id, 10**9) else None

    def committed(self, request, step):
        self.step += 1
        tokens = [each.token for each in step.outcome.emitted]
        self.seen.setdefault(request.id, []).append((tokens, step.reason))

    def finished(self, generation):
        self.done.append(generation.request.id)

    def failed(self, request, why):
        self.done.append(why)
