import pytest

from engine.backends.vllm import compat as guard
from engine.backends.vllm.compat import TRIED, Point, look, problems

HERE = __name__


def hooked(first, second, third=None):
    return first, second, third


class Holder:
    def method(self, value):
        return value


def test_a_callable_with_the_expected_beginning_is_found_with_its_holder():
    found = look(Point(HERE, "hooked", ("first", "second")))
    assert found.function is hooked
    assert found.problem is None
    method = look(Point(HERE, "Holder.method", ("self", "value")))
    assert method.holder is Holder


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(HERE, "renamed", ("first",)), "not there"),
        (Point(HERE, "Holder.renamed", ("self",)), "not there"),
        (Point("no.such.module", "hooked", ()), "not there"),
        (Point(HERE, "hooked", ("second", "first")), "its parameters are first, second, third"),
        (Point(HERE, "hooked", ("first", "second", "third", "fourth")), "expected to begin"),
    ],
)
def test_anything_else_is_a_problem_that_names_it(point, words):
    found = look(point)
    assert found.function is None
    assert found.problem is not None
    assert words in found.problem
    assert point.name in found.problem


def test_an_unknown_version_is_a_problem_of_its_own():
    point = Point(HERE, "hooked", ("first",))
    assert problems([point], TRIED[0]) == []
    (said,) = problems([point], "99.0")
    assert "99.0" in said
    assert TRIED[0] in said


def test_every_point_is_of_vllm():
    assert all(point.module.startswith("vllm.") for point in (*guard.V1, *guard.V2, *guard.SCHEDULER))
