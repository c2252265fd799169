"""The option that runs a share of the tests, and the failure that lists every case."""

import pytest

from engine.core.types import Protocol
from tests import conftest
from tests.support.cases import every_case
from tests.support.share import Share, parse_share, split
from tests.support.tiers import daily, fast_first, slow_unless

FILE = """
import pytest

@pytest.mark.parametrize("x", "abcde")
def test_first(x):
    pass

@pytest.mark.slow
@pytest.mark.parametrize("x", "uv")
def test_slow(x):
    pass

def test_single():
    pass

@pytest.mark.parametrize("x", "fg")
def test_second(x):
    pass
"""

# the two that watch for leaks collect garbage five times at each end
OFF = ("cacheprovider", "xdist", "hypothesispytest", "unraisableexception", "threadexception")


def collected(folder, capsys, *arguments):
    """Names of the tests that a run of `FILE` selects, and what it printed."""
    (folder / "test_it.py").write_text(FILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: some\n")
    plugins = ["--import-mode=importlib", *("-pno:" + name for name in OFF)]
    pytest.main(["--collect-only", "-v", *plugins, *arguments, "--rootdir", str(folder), str(folder)], [conftest])
    text = capsys.readouterr().out
    return [line.strip(" <>").removeprefix("Function test_") for line in text.splitlines() if "<Function" in line], text


SHARES = {
    "1/3": ["first[a]", "first[d]", "second[f]"],
    "2/3": ["first[b]", "first[e]", "second[g]"],
    "3/3": ["first[c]", "single"],
}


@pytest.mark.parametrize("share", SHARES)
def test_a_share_takes_every_nth_test_of_what_is_selected(share, tmp_path, capsys):
    names, text = collected(tmp_path, capsys, "--share", share, "-m", "not slow")
    assert names == SHARES[share]
    assert f"share: {share} of the tests" in text


@pytest.mark.parametrize("options", [["-qq"], []], ids=["quiet", "plain"])
def test_the_share_is_named_above_the_tests(options, tmp_path, capsys):
    _, text = collected(tmp_path, capsys, "--share", "2/3", *options)
    assert "share: 2/3 of the tests" in text


@pytest.mark.medium
def test_shares_together_are_the_whole(tmp_path, capsys):
    whole, text = collected(tmp_path, capsys)
    assert "share:" not in text
    parts = [collected(tmp_path, capsys, "--share", f"{k}/4")[0] for k in (1, 2, 3, 4)]
    assert sorted(name for part in parts for name in part) == sorted(whole)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "x/2", "-1/2", "1/2/3"])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(pytest.UsageError, match="write K/N, with K from 1 to N"):
        parse_share(text)


@pytest.mark.parametrize(
    ("count", "first", "kept"), [(3, 4, [0]), (3, 2, [1]), (1, 4, [0]), (9, 4, [3, 7]), (0, 4, [])]
)
def test_a_share_of_few_tests_is_never_empty(count, first, kept):
    assert split(range(count), Share(first, 4))[0] == kept


def test_a_share_is_read():
    assert parse_share("2/5") == Share(2, 5)
    assert str(Share(2, 5)) == "2/5"


def run_cases(names, check):
    with every_case() as case:
        for name in names:
            with case(name):
                check(name)


def test_every_case_runs_and_every_failure_is_listed():
    ran = []

    def check(name):
        ran.append(name)
        assert name == "two", f"not {name}"

    names = ["one", "two", "three", "three"]
    with pytest.raises(BaseExceptionGroup, match=r"^3 of 4 cases failed: one, three, three") as caught:
        run_cases(names, check)
    assert ran == names
    assert [error.__notes__ for error in caught.value.exceptions] == [["case: one"], ["case: three"], ["case: three"]]


def expects_what_does_not_come(_):
    with pytest.raises(ValueError, match="never"):
        pass


def test_a_missing_exception_is_a_failure_of_its_case():
    with pytest.raises(BaseExceptionGroup, match="1 of 1 cases failed: quiet"):
        run_cases(["quiet"], expects_what_does_not_come)


def test_a_test_that_runs_no_case_fails():
    with pytest.raises(AssertionError, match="no case ran"):
        run_cases([], print)


def names_that_end():
    yield "fine"
    raise KeyError("between")


def test_an_error_between_the_cases_is_not_held_back():
    with pytest.raises(KeyError, match="between"):
        run_cases(names_that_end(), str)


def slow_of(parameters):
    return [hasattr(each, "marks") and [mark.name for mark in each.marks] == ["slow"] for each in parameters]


def test_all_but_the_first_parameters_are_slow():
    made = fast_first(["a", ("b", 1), pytest.param("c", 2, id="c")], 1)
    assert slow_of(made) == [False, True, True]
    assert made[0] == "a"
    assert [each.values for each in made[1:]] == [("b", 1), ("c", 2)]
    assert made[2].id == "c"


def test_all_but_the_named_parameters_are_slow():
    assert slow_of(slow_unless([("x", 1), ("y", 2)], [("y", 2)])) == [True, False]
    with pytest.raises(AssertionError, match="not all of"):
        slow_unless(["x"], ["z"])


def test_of_each_proposer_one_rule_is_daily_and_two_where_named():
    pairs = [("a", each) for each in Protocol] + [("b", Protocol.GREEDY), ("b", Protocol.GUMBEL)]
    assert set(daily(pairs)) == {("a", Protocol.CHAIN), ("b", Protocol.GUMBEL)}
    assert set(daily(pairs, ("a",))) == {("a", Protocol.CHAIN), ("a", Protocol.GUMBEL), ("b", Protocol.GUMBEL)}
