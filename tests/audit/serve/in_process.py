"""The application of a server over a script in this process, and OpenAI's own client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from audit.serve.completion_id import new_ids
from audit.serve.grammar_trials import GrammarTrials
from audit.serve.limits import ServeLimits
from audit.serve.serving_run import NoRecords
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.scripted import open_models
from engine.core.types import Protocol, RecordLevel

RUN = "01M8A444QGGPHQ1RNNJBP4KSNP"
TOKEN = "a-token-of-tests-0123456789"
LIMITS = ServeLimits(context=256, tokens=256)


@contextmanager
def scripted_application(lines: list[str], trials: GrammarTrials) -> Iterator[Any]:
    """The application; `lines` gets what it reports."""
    from audit.serve.app import ApiServer, application
    from audit.serve.meters import ServeMeters
    from audit.serve.running_batch import RunningBatch
    from audit.serve.served_model import ServedModel
    from audit.serve.serving_run import EngineThread

    models = open_models({"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})
    spec = EngineSpec(Protocol.GUMBEL, "draft_model", 3, "draft", rows=4, level=RecordLevel.TOKENS)
    engine, meters = models.arm(spec), ServeMeters("script", 3)
    batch = RunningBatch(RUN, LIMITS, meters)
    model = ServedModel("script", engine, engine, LIMITS, "f")
    server = ApiServer(model, batch, meters, TOKEN, new_ids(RUN), "v", lines.append, trials=trials)
    thread = EngineThread(engine, batch, NoRecords(), LIMITS.context, lines.append, record=False)
    thread.start()
    yield application(server)
    batch.close()
    thread.join(10)
    server.shutdown()


def asked(app, question, key=TOKEN):
    """What a coroutine function of a client returns."""
    import httpx
    from openai import AsyncOpenAI

    async def run():
        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key=key, max_retries=0, http_client=http) as client,
        ):
            return await question(client)

    return asyncio.run(run())
