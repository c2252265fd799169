"""Rows reduced in vLLM's worker: the same trace as from the rows themselves, in a fraction of the bytes."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from engine.backends.vllm.hooks.spool_writer import Reducer, SpoolWriter
from engine.backends.vllm.hooks.step import DecisionRows, StepBatch, frame_of
from engine.backends.vllm.reconcile import NOTHING
from engine.backends.vllm.spool import worker_steps
from engine.backends.vllm.supervise import CallFacts, RequestOutcome
from engine.backends.vllm.to_record import RecordOptions, generation_of
from engine.backends.vllm.worker_terms import terms_of
from engine.core.child import read
from engine.core.structured import constraint_of
from engine.core.types import Protocol, RecordLevel, Request, Role, SamplingParams
from engine.record.foreign.requests import ForeignEngine
from engine.record.trace import decode

V = 400
PENALTIES = {"repetition_penalty": 1.3, "bad_words": ((7,),), "top_k": 50, "min_tokens": 2}
DIGITS = constraint_of({"regex": "[0-9]+"})
REQUESTS = {
    "1.0": Request("penalties", (1, 2), SamplingParams(temperature=0.8, max_new_tokens=4, **PENALTIES), 11),
    "1.1": Request("greedy", (3,), SamplingParams(max_new_tokens=5), 12),
    "1.2": Request("grammar", (4, 5), SamplingParams(temperature=1.0, max_new_tokens=4, structured=DIGITS), 13),
}
NAMES = tuple(f"{name}-abcdefgh" for name in REQUESTS)
STEPS = (
    ((0, 0, 0), (), [[9, -1], [8, -1], [6, -1]]),
    ((2, 1, 1), (10, 11, 12, 13), [[10, 20, -1], [12, 21, -1], [13, 22, -1]]),
    # the first request's last token is behind its limit
    ((1, 1, 0), (15, 16), [[15, 23], [24, -1], [25, -1]]),
)
"""For each step the drafted tokens of each request, and the emitted ones; the grammar drops a draft in the last."""
OFFERED = {2: [30, 31]}


def reading(level, drawn):
    foreign = ForeignEngine(V, (0,), Protocol.CHAIN, "draft_model", level)
    return RecordOptions(foreign, drawn=drawn, decode=lambda *_: None)


def rows(count, seed):
    return 2 * torch.randn(count, V, generator=torch.Generator().manual_seed(seed))


def frames(drawn):
    """What the hooks hold of the three steps."""
    for number, (counts, drafted, sampled) in enumerate(STEPS):
        batch = StepBatch(NAMES, (False,) * 3, counts, drafted, np.array(sampled))
        raw = rows(len(drafted) + 3, number)
        masks = torch.ones(len(raw), V, dtype=torch.bool)
        masks[-1, 30:200] = False
        last = number == len(STEPS) - 1
        law = DecisionRows(
            logits=rows(len(drafted), 10 + number) if drafted else None,
            q=torch.softmax(rows(len(drafted), 20 + number), -1) if drafted and drawn else None,
            last=rows(3, 30 + number),
            masks=masks,
            behind={2: torch.softmax(rows(1, 40)[0], -1)} if drawn and last else {},
            offered=OFFERED if last else {},
        )
        yield frame_of(number, batch, raw, law)


def spooled(tmp_path, drawn, options, *, reduce):
    """The steps by request, through a file."""
    terms = json.loads(json.dumps(options.kept.message(REQUESTS)))
    path = tmp_path / f"spool-{reduce}"
    writer = SpoolWriter(str(path), Reducer(terms_of(terms["terms"])).reduced if reduce else None)
    for frame in frames(drawn):
        writer.put(frame)
    writer.close()
    assert writer.failure is None
    return path, {name.rpartition("-")[0]: steps for name, steps in worker_steps(path).items()}


def generation(request, steps, options):
    tokens = [token for each in steps for token in each.step.emitted][: request.sampling.max_new_tokens]
    drafted = [each.step for each in steps if each.step.drafted]
    answer = {
        "tokens": tokens,
        "text": "",
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": [-0.5] * len(tokens),
        "steps": {"accepted": [each.accepted for each in drafted], "drafted": [len(each.drafted) for each in drafted]},
        "cached_tokens": 0,
        "latency_us": 1,
    }
    log = [dataclasses.replace(each.step, forbidden=()) for each in steps]
    if request.sampling.structured is not None:
        log[-1] = dataclasses.replace(log[-1], forbidden=tuple(OFFERED[2]))
    return generation_of(
        RequestOutcome(request, None, answer, tuple(steps), tuple(log)), CallFacts({}, ()), NOTHING, options
    )


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("level", [RecordLevel.SCALARS, RecordLevel.TOPK])
def test_the_trace_is_that_of_the_rows_themselves(tmp_path, level, drawn):
    options = reading(level, drawn)
    wide, plain = spooled(tmp_path, drawn, options, reduce=False)
    narrow, reduced = spooled(tmp_path, drawn, options, reduce=True)
    for name, request in REQUESTS.items():
        ours = generation(request, reduced[name], options)
        assert ours.trace == generation(request, plain[name], options).trace, request.id
        assert "level" not in ours.facts
    assert narrow.stat().st_size < wide.stat().st_size


def test_no_message_holds_a_row(tmp_path):
    path, _ = spooled(tmp_path, True, reading(RecordLevel.TOPK, True), reduce=True)
    with path.open("rb") as stream:
        shapes = [array.shape for frame in iter(lambda: read(stream), None) for array in frame.arrays.values()]
    assert max(shape[1] for shape in shapes if len(shape) > 1 and shape[0]) < V


def test_a_drawn_token_that_the_grammar_forbids_is_refused_in_the_worker(tmp_path):
    options = reading(RecordLevel.TOPK, True)
    _, reduced = spooled(tmp_path, True, options, reduce=True)
    trace = decode(generation(REQUESTS["1.2"], reduced["1.2"], options).trace)
    assert trace.node_token.tolist()[-1] == OFFERED[2][0]
    assert trace.role.tolist()[-1] == Role.RECOVERED
    assert trace.examined_q[-1] == trace.q_own[-1] > 0


def test_the_rows_of_a_grammar_whose_mask_is_not_seen_are_left_out(tmp_path):
    options = dataclasses.replace(reading(RecordLevel.TOPK, False), masks=False)
    _, reduced = spooled(tmp_path, False, options, reduce=True)
    assert [each.reduced for each in reduced["1.2"]] == [None] * 3
    trace = decode(generation(REQUESTS["1.2"], reduced["1.2"], options).trace)
    assert trace.header.level is RecordLevel.TOKENS


def test_samples_that_nobody_asked_for_are_left_out(tmp_path):
    options = reading(RecordLevel.TOPK, False)
    terms = options.kept.message({"1.1": REQUESTS["1.1"]})["terms"]
    reducer = Reducer(terms_of(terms))
    found = [reducer.reduced(frame).header["requests"] for frame in frames(False)]
    assert [[each["id"] for each in step] for step in found] == [[NAMES[1]]] * 3
