"""Check `text` at servers: one whose text is in another order than its tokens is found, whole and streamed."""

import pytest

from audit.evidence.verdicts import Verdict
from tests.http.asking import answers, arm, asked
from tests.support.texts import text_verdict
from tests.support.tiers import slow_unless

WAYS = slow_unless(["whole", "streamed", "both"], ["streamed"])
SOURCES = ("bundled:target", "served:bundled")


def judged(engine, **sampling):
    """The verdict on three answers."""
    return text_verdict(answers(engine, asked(engine, **sampling)))


@pytest.mark.medium
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", [{"gamma": 3}, {"gamma": 3, "disorder": True}])
def test_text_is_compared_with_ids_or_else_with_the_names_of_tokens(serve, way, source, settings):
    with serve(**settings) as server:
        found = judged(arm(server, source, proposer="served", stream=way))
    assert found.verdict is (Verdict.FAULT if "disorder" in settings else Verdict.CERTIFIED), found.summary
    assert found.n == 3


@pytest.mark.parametrize("stop", [{"stop": ('"',)}, {"stop_token_ids": (5, 18, 266)}, {"ignore_eos": True}])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.slow
def test_ends_of_answers_are_no_differences(serve, source, stop):
    with serve(gamma=3) as server:
        found = judged(arm(server, source, proposer="served", stream="streamed"), max_new_tokens=40, **stop)
    assert found.verdict is Verdict.CERTIFIED, [each.message for each in found.findings]


@pytest.mark.medium
def test_text_that_comes_before_its_ids_is_found(serve):
    with serve(gamma=3, early=2) as server:
        found = judged(arm(server, proposer="served", stream="streamed"))
    assert found.verdict is Verdict.FAULT
    assert "chunk 0 of the stream" in found.findings[0].message


@pytest.mark.medium
def test_an_answer_without_names_of_tokens_is_not_judged(serve):
    with serve(ids=False, scores=False, disorder=True) as server:
        found = judged(arm(server, proposer="served"))
    assert (found.verdict, found.lacking) == (Verdict.NOT_RUN, True)
    assert "names neither token ids" in found.summary
