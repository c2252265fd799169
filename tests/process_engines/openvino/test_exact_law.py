"""The exactly known law of Markov chains in OpenVINO GenAI, which a draft model breaks."""

import sys

import pytest

from audit.selftest.chains import FIRST, SEED, judge_walk, law, tables, write_chain
from audit.selftest.engines import walk_of
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.openvino_genai.backend import OpenVinoBackend
from engine.backends.openvino_genai.convert import CONVERTER
from engine.backends.process.convert import convert
from engine.core.types import Protocol, Request, SamplingParams
from engine.models.loading import open_source

pytestmark = pytest.mark.openvino


def test_a_draft_model_breaks_the_law(tmp_path):
    """A defect of the engine: its tokens are not the target's."""
    given = tables(SEED)
    folders = {
        name: write_chain(tmp_path / name, table) for name, table in (("target", given.target), ("draft", given.draft))
    }
    converted = {
        name: convert(CONVERTER, open_source(str(folder)), sys.executable, tmp_path / f"{name}-converted").folder
        for name, folder in folders.items()
    }
    backend = OpenVinoBackend({name: ModelSource(str(folder)) for name, folder in folders.items()})
    sampling = SamplingParams(temperature=1.0, max_new_tokens=500, seed=3)
    named = {"threads": 1, "openvino": {name: str(folder) for name, folder in converted.items()}}
    engine = backend.arm(EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft", rows=1, engine=named))
    seen = walk_of(engine.generate([Request(f"r{at}", (FIRST + at,), sampling, at) for at in range(4)]))
    backend.close()
    judged = judge_walk(seen, *(law(table, sampling) for table in (given.target, given.draft)))
    print(f"{judged.tokens} tokens, p {judged.p:.2g}, leak {judged.leak.share:+.3f}")
    assert judged.departs
