import pytest

from engine.backends.vllm import compat as guard
from engine.backends.vllm.compat import TRIED, HookPoint, problems, resolve

HERE = __name__


def hooked(first, second, third=None):
    return first, second, third


class Holder:
    def method(self, value):
        return value


def test_a_callable_with_the_expected_beginning_is_found_with_its_holder():
    found = resolve(HookPoint(HERE, "hooked", ("first", "second")))
    assert found.function is hooked
    assert found.problem is None
    method = resolve(HookPoint(HERE, "Holder.method", ("self", "value")))
    assert method.holder is Holder


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (HookPoint(HERE, "renamed", ("first",)), "not there"),
        (HookPoint(HERE, "Holder.renamed", ("self",)), "not there"),
        (HookPoint("no.such.module", "hooked", ()), "not there"),
        (HookPoint(HERE, "hooked", ("second", "first")), "its parameters are first, second, third"),
        (HookPoint(HERE, "hooked", ("first", "second", "third", "fourth")), "expected to begin"),
    ],
)
def test_anything_else_is_a_problem_that_names_it(point, words):
    found = resolve(point)
    assert found.function is None
    assert found.problem is not None
    assert words in found.problem
    assert point.name in found.problem


def test_an_unknown_version_is_a_problem_of_its_own():
    point = HookPoint(HERE, "hooked", ("first",))
    assert problems([point], TRIED[0]) == []
    (said,) = problems([point], "99.0")
    assert "99.0" in said
    assert TRIED[0] in said


def test_every_point_is_of_vllm():
    assert all(point.module.startswith("vllm.") for point in (*guard.V1, *guard.V2, *guard.SCHEDULER))
