"""Settings: kinds, ranges, defaults, and what is said of a wrong one."""

import math

import pytest

from engine.core.errors import InvalidRequest
from engine.core.options import ScalarOption, read_options

KNOWN = {
    "depth": ScalarOption(24, 1, 64),
    "count": ScalarOption(0),
    "share": ScalarOption(0.5, 0.0, 1.0),
    "factor": ScalarOption(1.0, 0.1),
    "on": ScalarOption(default=False),
}


def test_what_is_not_given_has_its_default():
    assert read_options("thing", {}, KNOWN) == {"depth": 24, "count": 0, "share": 0.5, "factor": 1.0, "on": False}


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("depth", 1, 1),
        ("depth", 64, 64),
        ("count", 10**9, 10**9),
        ("share", 0, 0.0),
        ("share", 1.0, 1.0),
        ("factor", 7, 7.0),
        ("on", True, True),
        ("on", 1, True),
        ("on", 0, False),
    ],
)
def test_a_value_is_read_as_its_kind(key, value, read):
    found = read_options("thing", {key: value}, KNOWN)[key]
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("depth", 0, "a whole number from 1 to 64, not 0"),
        ("depth", 65, "a whole number from 1 to 64, not 65"),
        ("depth", 2.0, "a whole number from 1 to 64, not 2.0"),
        ("depth", True, "a whole number from 1 to 64, not True"),
        ("depth", "2", "a whole number from 1 to 64, not '2'"),
        ("count", -1, "a whole number of at least 0, not -1"),
        ("share", 1.5, "a number from 0.0 to 1.0, not 1.5"),
        ("share", math.nan, "a number from 0.0 to 1.0, not nan"),
        ("share", None, "a number from 0.0 to 1.0, not None"),
        ("factor", math.inf, "a number of at least 0.1, not inf"),
        ("factor", False, "a number of at least 0.1, not False"),
        ("on", 2, "true or false, not 2"),
        ("on", 1.0, "true or false, not 1.0"),
        ("on", "yes", "true or false, not 'yes'"),
    ],
)
def test_a_value_that_does_not_fit_is_named(key, value, wanted):
    with pytest.raises(InvalidRequest) as caught:
        read_options("thing", {key: value}, KNOWN)
    assert str(caught.value) == f"thing: option {key} must be {wanted}"


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"^thing has no option 'width'; it has: count, depth, factor, on, share$"):
        read_options("thing", {"width": 1}, KNOWN)
    with pytest.raises(InvalidRequest, match=r"it has: none$"):
        read_options("thing", {"width": 1}, {})
