"""An observer of a run that interrupts it."""

from __future__ import annotations

from audit.api.running import Quiet


class StopsAfter(Quiet):
    """The user's Ctrl-C after a number of stored requests."""

    def __init__(self, requests):
        self.left = requests

    def advance(self, tokens):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
