"""Arms on vLLM, small enough for a test: the bundled target, few requests, little memory."""

from dataclasses import dataclass, replace

import numpy as np

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.vllm.backend import VllmBackend
from engine.core.types import Protocol, Request, SamplingParams
from engine.record.trace import decode, steps_of
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform

ENGINE = {"max_model_len": 640, "kv_cache_gib": 0.25, "timeout_s": 240, "engines": 1}
NGRAM = {"prompt_lookup_min": 1, "prompt_lookup_max": 3}


def backend(**named):
    sources = {"target": ModelSource("bundled:target"), "draft": ModelSource("bundled:medium_draft")}
    return VllmBackend(sources, **named)


def plan(proposer=None, protocol=Protocol.GREEDY, **named):
    engine = {**ENGINE, **named.pop("engine", {})}
    return EngineSpec(protocol, proposer, 0 if proposer is None else 3, rows=4, engine=engine, **named)


def requests(prompts, sampling=None, lengths=(8, 13, 21, 34, 48)):
    """The prompts in turn, each with the next length."""
    sampling = sampling or SamplingParams()
    return [
        Request(f"r{i}", tuple(ids), replace(sampling, max_new_tokens=lengths[i % len(lengths)]), stream_of(str(i)))
        for i, ids in enumerate(prompts)
    ]


def answered(engine, asked):
    """Generations by id; every request has one."""
    found = {each.request.id: each for each in engine.generate(asked)}
    assert set(found) == {each.id for each in asked}
    return found


def reconciled(generation):
    """Every source was heard and none differs."""
    facts = generation.facts["reconciliation"]
    assert facts["mismatches"] == []
    assert "level" not in generation.facts, generation.facts["why"]
    return set(facts["sources"])


@dataclass(frozen=True)
class Own:
    """p by our arithmetic on the recorded raw rows: of every examined token [X], and of every emitted one [E]."""

    examined: np.ndarray
    emitted: np.ndarray


def own_p(generation):
    trace = decode(generation.trace)
    header, history = trace.header, list(trace.header.prompt)
    examined, emitted = [], []
    for step in steps_of(trace):
        drafted = trace.node_token[step.nodes].tolist()
        nodes = trace.examined_node[step.examined].tolist()
        for at, token in enumerate(trace.token[step.emitted].tolist()):
            row = trace.logits[step.emitted][at]
            p = transform(row, history, len(header.prompt), header.sampling, header.eos_ids).p
            emitted.append(float(p[token]))
            examined += [float(p[drafted[node]]) for node in nodes[at : at + 1]]
            history.append(token)
    return Own(np.array(examined), np.array(emitted))
