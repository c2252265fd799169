"""An engine that fails on a request ends that batch, not the server; one that fails always ends it."""

from __future__ import annotations

import asyncio

import pytest

from audit.serve.completion_id import new_ids
from audit.serve.limits import ServeLimits
from audit.serve.refusals import ApiRefusal
from audit.serve.request_parser import read_completion
from audit.serve.serving_run import NoRecords
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import open_models
from engine.core.types import Protocol, RecordLevel

LIMITS = ServeLimits(context=256, tokens=256)
RUN = "01M8A444QGGPHQ1RNNJBP4KSNP"
POISON = 99


class Poisoned:
    """An engine whose loop raises as soon as it is asked for an answer of a certain length."""

    def __init__(self, inner, *, always=False):
        self._inner, self._always = inner, always
        self.sizes, self.tokenizer, self.admitted, self.encode = (
            inner.sizes,
            inner.tokenizer,
            inner.admitted,
            inner.encode,
        )

    def serve(self, arrivals, longest, *, record):
        return self._inner.serve(_Spoilt(arrivals, self._always), longest, record=record)


class _Spoilt:
    def __init__(self, inner, always):
        self._inner, self._always = inner, always
        self.wait, self.withdrawn, self.finished = inner.wait, inner.withdrawn, inner.finished

    @property
    def call(self):
        return self._inner.call

    def take(self):
        return self._inner.take()

    def committed(self, request, step):
        self._inner.committed(request, step)
        if self._always or request.sampling.max_new_tokens == POISON:
            raise RuntimeError("a broken kernel")


class Harness:
    """The parts of a server without HTTP; its loop begins with `start`."""

    def __init__(self, **options):
        from audit.serve.meters import ServeMeters
        from audit.serve.running_batch import RunningBatch
        from audit.serve.served_model import ServedModel
        from audit.serve.serving_run import EngineThread

        inner = open_models({"target": ModelSource("scripted:1")}).arm(
            EngineSpec(Protocol.GUMBEL, rows=2, level=RecordLevel.TOKENS)
        )
        engine = Poisoned(inner, **options)
        self.lines = []
        self.batch = RunningBatch(RUN, LIMITS, ServeMeters("m", 0))
        self.model = ServedModel("m", engine, engine, LIMITS, "f")
        self.ids = new_ids(RUN)
        self.thread = EngineThread(engine, self.batch, NoRecords(), LIMITS.context, self.lines.append, record=False)

    def start(self):
        self.thread.start()

    async def ask(self, length):
        from audit.serve.completion_task import CompletionTask

        name = self.ids(False)
        asked = read_completion({"prompt": "abc", "max_tokens": length, "temperature": 0}, "m", LIMITS)
        task = CompletionTask(self.model, self.batch, asked, name, self.model.requests(name, asked))
        task.start()
        return (await task.whole())["choices"][0]["text"]

    def close(self):
        self.batch.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def opened():
    made = []

    def make(**options):
        made.append(Harness(**options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def test_an_error_ends_what_runs_and_nothing_else(opened):
    harness = opened()
    harness.start()

    async def run():
        results = await asyncio.gather(*(harness.ask(length) for length in (POISON, 4, 8, 16)), return_exceptions=True)
        return results, await harness.ask(8)

    (broken, *others), after = asyncio.run(run())
    assert isinstance(broken, ApiRefusal)
    assert (broken.status, broken.code) == (500, "engine_failed")
    assert "a broken kernel" in broken.message
    # one of them ran beside the poisoned request, the others waited
    answers = [each for each in others if isinstance(each, str)]
    assert len(answers) >= 2
    assert all(after.startswith(each) or each.startswith(after) for each in answers)
    assert harness.batch.closed is None
    assert harness.batch.load == (0, 0)
    assert harness.lines == ["the engine failed: RuntimeError: a broken kernel"]


def test_an_engine_that_always_fails_stops_the_server(opened):
    harness = opened(always=True)

    async def run():
        asked = [asyncio.create_task(harness.ask(8)) for _ in range(9)]
        # a request that comes after the third error would be refused with 503, so all of them wait when the loop begins
        await asyncio.sleep(0)
        assert harness.batch.load == (0, 9)
        harness.start()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = asyncio.run(run())
    assert {each.status for each in answers} == {500}
    assert harness.batch.closed.status == 503
    with pytest.raises(ApiRefusal) as caught:
        asyncio.run(harness.ask(8))
    assert caught.value.status == 503
    assert len(harness.lines) == 3
