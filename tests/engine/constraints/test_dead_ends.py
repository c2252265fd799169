"""A grammar that leads nowhere ends its own request, with the reason on record, and no other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec
from engine.constraints.compiled import BYTES, Grammars
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Protocol, RecordLevel
from engine.record.trace import decode
from tests.engine.constraints.arms import CHOICE, DRAFTS, LIBRARIES, backend, decoded, requests, sampling

NOWHERE = {"regex": "[a-z]{3}Z"}
"""No token of the scripted alphabet is a capital, so the fourth row has none at all."""
ENDLESS = {"json": {"$ref": "#"}}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("proposer", [None, *DRAFTS])
def test_the_request_ends_and_its_neighbours_are_as_without_it(library, proposer):
    rule = Protocol.TREE if proposer == "specinfer" else Protocol.CHAIN
    wanted = requests(5, sampling(CHOICE, library, temperature=1.0))
    bad = requests(6, sampling(NOWHERE, library, temperature=1.0))[-1]
    alone = decoded(rule, proposer, wanted)
    beside = decoded(rule, proposer, [*wanted[:2], bad, *wanted[2:]])
    lost = beside.pop("r5")
    assert {name: each.tokens for name, each in beside.items()} == {name: each.tokens for name, each in alone.items()}
    assert (lost.tokens, lost.finish_reason) == ((), FinishReason.ERROR)
    error = decode(lost.trace).header.facts["error"]
    assert error["kind"] == "refused"
    assert "masked" in error["message"] or "gave up" in error["message"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("grammar", [ENDLESS, {"regex": "Z[a-z]"}, {"json": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}])
def test_one_that_cannot_begin_is_refused_before_it_is_decoded(library, grammar):
    with pytest.raises(InvalidRequest, match="structured"):
        backend().arm(EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.TOKENS)).require(
            requests(1, sampling(grammar, library))
        )


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tokenizer_that_changes_a_text_does_not_change_the_grammar(library):
    """Such as one with a normalizer: its tokens of `AB` spell `ab`, and forced text is asked of the tokenizer."""
    changing = replace(BYTES, encode=lambda text: list(text.lower().encode()))
    constraint = Grammars(lambda: changing, (0,)).constraint(sampling({"regex": "AB[0-9]"}, library))
    spelled = [bytes(np.flatnonzero(constraint(list(b"AB"[:count]))).tolist()) for count in range(3)]
    assert spelled == [b"A", b"B", b"0123456789"]
