"""Recording beside decoding: the same bytes, nothing lost, nothing left behind."""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine import verify
from engine.core.errors import ModelError
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.interface import Forward
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import PlainProposer
from engine.record import writer as writing
from engine.record.recorder import Recorder
from engine.record.trace import decode
from engine.record.writer import RecordWriter
from tests.engine.build import Setup, make_loop, requests, spell, target_script
from tests.support.records import header, plain_step
from tests.support.tiers import slow_unless

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=24, seed=5)
PENALISED = replace(SAMPLED, repetition_penalty=1.3, bad_words=((3,),))
GENERATION = Generation(Request("r", (0,), SAMPLED), (1,), FinishReason.LENGTH, b"")
STEP = plain_step(np.float32([1, 2, 3, 0]))
PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not writers()


def writers():
    return [each for each in threading.enumerate() if each.name == "record-writer"]


def lengths(count, sampling):
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + (i * 7) % 24))
        for i, each in enumerate(requests(count, sampling))
    ]


class InPlace(RecordWriter):
    """The writer without a thread."""

    def step(self, recorder, record):
        if recorder is not None:
            recorder.step(record)

    def finish(self, recorder, generation):
        super().finish(None, replace(generation, trace=recorder.finish(generation.finish_reason)))


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [SAMPLED, PENALISED])
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("steps_at_once", slow_unless([1, 3, 16], [3]))
def test_a_trace_has_the_bytes_that_it_has_without_the_thread(level, steps_at_once, sampling, monkeypatch):
    def written():
        clock = itertools.count()
        monkeypatch.setattr("engine.decode.loop.time", SimpleNamespace(perf_counter=lambda: next(clock) * 1e-3))
        return [(each.request.id, each.trace) for each in make_loop(Setup(rows=3, level=level)).run(wanted)]

    wanted = lengths(7, sampling)
    monkeypatch.setattr(writing, "STEPS_AT_ONCE", steps_at_once)
    beside = written()
    monkeypatch.setattr("engine.decode.loop.RecordWriter", InPlace)
    assert beside == written()
    assert [name for name, _ in beside] != [each.id for each in wanted], "they finish in another order than they begin"


class Watched:
    """A scripted model; `before` is called with the number of each forward, `after` changes what it gives."""

    def __init__(self, before=lambda number: None, after=lambda found: found):
        self.model = ScriptedModel(target_script(Setup()), 8)
        self.before, self.after, self.numbers = before, after, itertools.count(1)

    def __getattr__(self, name):
        return getattr(self.model, name)

    def forward(self, cache, placement, want):
        self.before(next(self.numbers))
        return self.after(self.model.forward(cache, placement, want))


def plain_loop(model, level=RecordLevel.FULL, **options):
    return Loop(model, PlainProposer(), verify.load(Protocol.GUMBEL), spell, LoopOptions(1, 0, 64, level, **options))


def test_rows_are_copies_of_what_the_model_may_overwrite():
    buffer = torch.empty(1, 1, 8, dtype=torch.float64)

    def overwritten(found):
        return found if found.logits is None else Forward(buffer.copy_(found.logits), {})

    models = (Watched(after=overwritten), Watched())
    reused, fresh = ([decode(each.trace) for each in plain_loop(model).run(requests(2, SAMPLED))] for model in models)
    for ours, theirs in zip(reused, fresh, strict=True):
        np.testing.assert_array_equal(ours.logits, theirs.logits)
        np.testing.assert_array_equal(ours.logits_digest, theirs.logits_digest)
        assert len({row.tobytes() for row in ours.logits}) > 3, "rows differ, so an overwritten one would show"


class Failing(Recorder):
    """Breaks when request r2 has taken 3 steps."""

    def step(self, record):
        if self.header.request == "r2" and record.step == 3:
            raise OSError("disk of the worker is full")
        super().step(record)


@pytest.mark.parametrize("steps_at_once", [1, 100])
def test_what_the_worker_raises_is_raised_where_the_record_was_asked_for(steps_at_once, monkeypatch):
    monkeypatch.setattr("engine.decode.loop.Recorder", Failing)
    monkeypatch.setattr(writing, "STEPS_AT_ONCE", steps_at_once)
    found = []
    run = make_loop(Setup(proposer=None)).run(requests(4, SAMPLED))
    with pytest.raises(OSError, match="disk of the worker"):
        found.extend(each.request.id for each in run)
    assert found == ["r0", "r1"], "what was finished before is whole"


def test_a_fault_of_the_model_comes_after_the_generations_that_were_finished():
    def break_at_40(number):
        if number == 40:
            raise ModelError("forward 40 failed")

    found = []
    run = plain_loop(Watched(break_at_40)).run(requests(4, SAMPLED))
    with pytest.raises(ModelError, match="forward 40"):
        found.extend(decode(each.trace).tokens == each.tokens for each in run)
    assert found == [True], "25 forwards for the first request, the second fails"


def test_a_consumer_that_stops_early_leaves_no_thread():
    run = make_loop(Setup()).run(requests(5, SAMPLED))
    assert next(run).request.id == "r0"
    assert len(writers()) == 1
    run.close()
    assert not writers()
    for _ in make_loop(Setup()).run(requests(5, SAMPLED)):
        break
    assert not writers()


def test_a_trace_that_takes_long_does_not_stop_decoding(monkeypatch):
    decoded = threading.Event()
    in_time = []

    class Slow(Recorder):
        def finish(self, reason):
            if self.header.request == "r0":
                in_time.append(decoded.wait(PATIENCE))
            return super().finish(reason)

    model = Watched(lambda number: decoded.set() if number == 40 else None)
    monkeypatch.setattr("engine.decode.loop.Recorder", Slow)
    names = [each.request.id for each in plain_loop(model).run(requests(4, SAMPLED))]
    assert in_time == [True], "the second request was decoded while the first one's trace was being written"
    assert names == ["r0", "r1", "r2", "r3"]


def test_a_writer_that_cannot_keep_up_makes_decoding_wait_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(writing, "STEPS_AT_ONCE", 2)
    gate, handed = threading.Event(), []

    class Gated(Recorder):
        def step(self, record):
            assert gate.wait(PATIENCE)
            super().step(record)

    def hand_over():
        with RecordWriter() as writer:
            recorder = Gated(header())
            for step in range(100):
                writer.step(recorder, replace(STEP, step=step, position=step))
                handed.append(step)
            writer.finish(recorder, GENERATION)
            found.extend(writer.rest())

    found: list[Generation] = []
    decoding = threading.Thread(target=hand_over)
    decoding.start()
    decoding.join(0.3)
    waiting = len(handed)
    gate.set()
    decoding.join(PATIENCE)
    # one batch with the worker, the full queue, and one that is being handed over
    assert waiting <= 2 * (writing.BATCHES_WAITING + 2)
    assert decode(found[0].trace).position.tolist() == list(range(100))


def test_rows_count_by_their_bytes(monkeypatch):
    monkeypatch.setattr(writing, "BYTES_AT_ONCE", 16)
    with RecordWriter() as writer:
        recorder = Recorder(header())
        writer.step(recorder, STEP)
        assert not writer._gathered, "a step of 16 bytes is handed over at once"
        writer.finish(recorder, GENERATION)
        (found,) = writer.rest()
    assert decode(found.trace).steps == 1


def test_nothing_is_written_where_no_record_is_wanted(monkeypatch):
    def forbidden(self):
        raise AssertionError("a thread was started")

    wanted = requests(3, SAMPLED)
    recorded = list(plain_loop(Watched()).run(wanted))
    monkeypatch.setattr("engine.record.writer._Worker.start", forbidden)
    silent = list(plain_loop(Watched(), record=False).run(wanted))
    assert [each.trace for each in silent] == [b""] * 3
    for ours, theirs in zip(silent, recorded, strict=True):
        assert (ours.tokens, ours.finish_reason, ours.text) == (theirs.tokens, theirs.finish_reason, theirs.text)
