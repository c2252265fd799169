"""Observers of a run: one that does nothing, one that interrupts it."""

from __future__ import annotations


class Silent:
    def planned(self, totals):
        pass

    def arm(self, name, total, done):
        pass

    def advance(self, tokens):
        pass

    def judging(self, arm):
        pass

    def judged(self, arm, check, verdict):
        pass


class StopsAfter(Silent):
    """The user's Ctrl-C after a number of stored requests."""

    def __init__(self, requests):
        self.left = requests

    def advance(self, tokens):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
