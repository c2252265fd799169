"""An engine that is not ours and dies of some requests: of those with a top_k and the letter e in the prompt."""

from dataclasses import replace

from engine.backends.native import SCRIPTED_KIND
from engine.backends.native.scripted import ALPHABET
from engine.backends.native.scripted import open_models as open_scripted
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel
from engine.record.foreign.requests import ForeignEngine, failed_trace, header_of

DEADLY = ALPHABET.index("e")


class Dying:
    """The scripted backend until such a request comes; it is up again for the next."""

    def __init__(self, engine):
        self._backend = engine

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def generate(self, requests):
        for request in requests:
            if request.sampling.top_k and DEADLY in request.prompt:
                yield died(request)
            else:
                yield from self._backend.generate([request])


def died(request):
    facts = {"error": {"kind": "engine_died", "message": "device-side assert"}}
    what = ForeignEngine(len(ALPHABET), (), Protocol.CHAIN, "draft_model", RecordLevel.TOKENS)
    trace = failed_trace(header_of(request, what, FinishReason.ERROR, facts))
    return Generation(request, (), FinishReason.ERROR, trace, facts=facts)


class Backend:
    def __init__(self, backend):
        self._workshop = backend

    def models(self):
        return self._workshop.models()

    def arm(self, plan):
        return Dying(self._workshop.arm(plan))


def open_models(models):
    return Backend(open_scripted(models))


class Sticky(Dying):
    """Once such a request has come, all that follow die too, in later calls as well, until the engine is closed."""

    def __init__(self, engine, seen):
        super().__init__(engine)
        self._seen = seen

    def generate(self, requests):
        for request in requests:
            if request.sampling.top_k and DEADLY in request.prompt:
                self._seen.append(request)
            yield from [died(request)] if self._seen else self._backend.generate([request])


class StickyBackend(Backend):
    def __init__(self, backend):
        super().__init__(backend)
        self._seen = []

    def arm(self, plan):
        return Sticky(self._workshop.arm(plan), self._seen)

    def close(self):
        self._seen.clear()


def open_sticky(models):
    return StickyBackend(open_scripted(models))


DYING = replace(SCRIPTED_KIND, open=open_models)
OF_TEXT = replace(DYING, tokens=False)
STICKY = replace(SCRIPTED_KIND, open=open_sticky)
