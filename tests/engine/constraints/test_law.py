"""Under rejection sampling answers have the law of plain decoding conditional on the masks; a broken mask breaks it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from engine.backends.engine_spec import EngineSpec
from engine.core.types import Protocol, RecordLevel, Request
from engine.models.scripted import table_script
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform
from tests.engine.constraints.arms import END, LIBRARIES, backend, decoded, sampling
from tests.support.tiers import slow_unless

TREE_OF_ANSWERS = {"regex": "(ab?|b(a|c)?|c{1,3})[.!]"}
PROMPT = (3, 7)


def exact(params) -> dict[tuple[int, ...], float]:
    """The probability of every answer, by the scripted target and a fresh constraint."""
    script = table_script(1, END + 1)
    masks = backend().arm(EngineSpec(Protocol.GUMBEL))._grammars.constraint(params)
    law, waiting = {}, {(): 1.0}
    while waiting:
        tokens, chance = waiting.popitem()
        history = [*PROMPT, *tokens]
        row = transform(script(tuple(history)), history, len(PROMPT), params, (), masks(tokens))
        for token in np.flatnonzero(row.p).tolist():
            longer = (*tokens, token)
            into = law if token == END else waiting
            into[longer] = chance * float(row.p[token])
    return law


def p_value(law, answers) -> float:
    """Pearson's test of the answers; those that the law excludes make it 0."""
    found = Counter(each.tokens for each in answers)
    if set(found) - set(law):
        return 0.0
    total = sum(found.values())
    rare = [answer for answer, chance in law.items() if chance * total < 5]
    cells = [(found[answer], law[answer]) for answer in law if answer not in rare]
    cells += [(sum(found[answer] for answer in rare), sum(law[answer] for answer in rare))] if rare else []
    statistic = sum((seen - total * chance) ** 2 / (total * chance) for seen, chance in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def answers(protocol, proposer, params, count, fault=None):
    wanted = [Request(f"r{i}", PROMPT, params, stream_of(f"law{i}")) for i in range(count)]
    return decoded(protocol, proposer, wanted, level=RecordLevel.TOKENS, rows=64, fault=fault).values()


CASES = [
    (Protocol.CHAIN, "draft_model"),
    (Protocol.CHAIN, "ngram"),
    (Protocol.BLOCK, "draft_model"),
    (Protocol.TREE, "specinfer"),
]


def test_the_law_of_the_masks_sums_to_one():
    law = exact(sampling(TREE_OF_ANSWERS, temperature=1.0))
    assert len(law) == 16
    assert abs(sum(law.values()) - 1) < 1e-12


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("protocol", "proposer"), CASES)
@pytest.mark.slow
def test_answers_have_the_law_conditional_on_the_masks(protocol, proposer, library):
    params = sampling(TREE_OF_ANSWERS, library, temperature=1.0)
    assert p_value(exact(params), answers(protocol, proposer, params, 4000)) > 1e-4


@pytest.mark.medium
def test_chains_have_the_law_conditional_on_the_masks():
    params = sampling(TREE_OF_ANSWERS, temperature=1.0)
    assert p_value(exact(params), answers(Protocol.CHAIN, "draft_model", params, 400)) > 1e-4


WRONG = ("mask_missing_on_bonus_token", "matcher_not_rolled_back", "mask_on_draft_only")


@pytest.mark.medium
@pytest.mark.parametrize("fault", slow_unless(WRONG, WRONG[:1]))
def test_a_broken_mask_fails_the_law(fault):
    params = sampling(TREE_OF_ANSWERS, temperature=1.0)
    assert p_value(exact(params), answers(Protocol.CHAIN, "draft_model", params, 400, fault)) < 1e-9


@pytest.mark.slow
def test_a_law_that_is_only_tilted_fails_too():
    params = sampling(TREE_OF_ANSWERS, temperature=1.0)
    law = exact(params)
    tilted = {answer: chance**0.5 for answer, chance in law.items()}
    total = sum(tilted.values())
    wrong = {answer: chance / total for answer, chance in tilted.items()}
    assert p_value(wrong, answers(Protocol.CHAIN, "draft_model", params, 400)) < 1e-4
