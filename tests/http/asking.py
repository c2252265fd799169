"""Arms at test servers, and requests to them."""

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.core.types import Protocol, Request, SamplingParams

CHATS = tuple(
    Prompt(({"role": "user", "content": f"Extract name, city as JSON: {name} from {city} aged {age}."},))
    for name, city, age in (("Trolvuth", "Sofia", 73), ("Dusbi", "Tokyo", 31), ("Paleir", "Boston", 57))
)
QUICK = {"backoff_s": 0.01, "silence_s": 20, "connect_s": 5}


def arm(at, /, source="bundled:target", proposer=None, rows=2, rule=Protocol.GREEDY, **engine):
    backend = open_backend("openai", {"target": ModelSource(source)})
    settings = {"url": at.url, "model": "bundled", "server": "vllm", **QUICK, **engine}
    return backend.arm(EngineSpec(rule, proposer, 3 if proposer else 0, rows=rows, engine=settings))


def asked(engine, count=3, **sampling):
    """`count` requests of as many prompts."""
    params = SamplingParams(**{"max_new_tokens": 16, **sampling})
    return [Request(f"arm/{i}#0", engine.encode(CHATS[i % len(CHATS)]), params, i) for i in range(count)]


def answers(engine, requests):
    """Generations by request."""
    found = {each.request.id: each for each in engine.generate(requests)}
    assert set(found) == {each.id for each in requests}
    return [found[each.id] for each in requests]
