"""Arms on onnxruntime-genai: equal tokens, rows, rounds that agree with the tokens, and parameters that take effect."""

import numpy as np
import pytest

from engine.core.types import RecordLevel, SamplingParams
from engine.record.trace import decode
from tests.process_engines.engines import ORT, generated, only

pytestmark = only(ORT)


@pytest.mark.parametrize("name", ["draft", "adaptive", "ngram", "chained"])
@pytest.mark.parametrize("level", [RecordLevel.TOKENS, RecordLevel.FULL])
def test_greedy_tokens_are_those_of_plain_decoding(arm, plain, name, level):
    found = generated(arm(name, level=level), SamplingParams(max_new_tokens=32))
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    counts = [each.facts["speculation"] for each in found]
    assert sum(each["accepted"] for each in counts) > 0
    assert all(sum(each["per_step_emitted"]) + each["undrafted_steps"] == 32 for each in counts)


@pytest.mark.parametrize("name", ["plain", "draft"])
def test_rows_are_those_that_decided(arm, name):
    engine = arm(name)
    assert engine.evidence_level() == 2
    for each in generated(engine, SamplingParams(max_new_tokens=16)):
        rows = decode(each.trace).logits
        assert tuple(rows.argmax(axis=1)) == each.tokens
        anchor = engine.anchor(each.request, each.tokens)
        assert np.abs(decode(anchor.trace).logits - rows).max() < 1e-3


def test_settings_are_read_back_from_the_engine(arm):
    effective = arm("chained").effective_config()
    assert effective.in_effect["ngram_chained_lookup"] is True
    assert effective.in_effect["ngram_size"] == 2
    assert effective.in_effect["speculation"] is True
    assert arm("plain").effective_config().in_effect == {"speculation": False}
    assert arm("draft").effective_config().facts["engine"]["installed"]["version"].startswith("0.")
