"""When requests go: no test waits for real."""

from datetime import UTC, datetime

import pytest

from engine.backends.openai.rate_limit import ArmStopped, RateLimiter, pause, retry_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """Time that passes by waiting alone."""

    def __init__(self):
        self.now = 100.0
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds
        return False


def rate_limiter(clock, per_minute=None):
    return RateLimiter(per_minute, lambda: clock.now, wait=clock.wait)


def test_a_limit_spreads_requests_over_the_minute():
    clock = Clock()
    mine = rate_limiter(clock, per_minute=30)
    began = [clock.now + 0.0 for _ in range(4) if mine.turn() is None]
    assert began == [100.0, 102.0, 104.0, 106.0]


def test_without_a_limit_nothing_waits():
    clock = Clock()
    mine = rate_limiter(clock)
    for _ in range(5):
        mine.turn()
    assert clock.waits == []


def test_a_server_that_asks_to_wait_holds_every_request():
    clock = Clock()
    mine = rate_limiter(clock)
    mine.hold(7.0)
    mine.turn()
    assert clock.now == 107.0


def test_who_waits_is_told_when_the_arm_is_over():
    mine = RateLimiter(None)
    mine.stop()
    with pytest.raises(ArmStopped):
        mine.turn()
    with pytest.raises(ArmStopped):
        mine.sleep(1000.0)


def test_pauses_double_up_to_the_most_and_differ_between_requests():
    pauses = [pause(attempt, "a", 1.0, 10.0) for attempt in range(1, 7)]
    for attempt, found in enumerate(pauses):
        whole = min(10.0, 2.0**attempt)
        assert whole / 2 <= found <= whole
    assert pauses == [pause(attempt, "a", 1.0, 10.0) for attempt in range(1, 7)]
    assert pauses[0] != pause(1, "b", 1.0, 10.0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("12", 12.0),
        (" 0 ", 0.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
    ],
)
def test_a_retry_after_header_is_read_in_both_its_forms(header, seconds):
    assert retry_after(header, NOW) == seconds
