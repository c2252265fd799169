"""The webhook as an ASGI application. Starlette comes with the extra `specaudit[admission]`.

Every failure is a denial: an unexpected error, a store that is gone, locked or slow. A body that names no request is
answered with status 400, which Kubernetes treats as a failed call (`failurePolicy: Fail` denies it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from audit.errors import CannotDecide, UserError
from audit.gate.admission.decide import Rules, SignedDecisions, SignedRun, answer, as_signed
from audit.gate.admission.reviews import AdmissionAnswer, MalformedReview, Review, denied, read_review, response
from audit.store.reading.decision_index import DecidedRun, DecisionReader

PATH: Final = "/validate"
MOST_BYTES: Final = 8 * 2**20
"""Largest body: a request carries the new and the old object, of at most 1.5 MiB in etcd each."""
THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Webhook:
    """The rules, the store's reader, the longest wait for the store in seconds, and a place for messages.

    signed: the keys whose signature a decision needs; None trusts the store's rows.
    """

    rules: Rules
    reader: DecisionReader
    timeout_s: float
    report: Callable[[str], None]
    signed: SignedDecisions | None = None

    def decide(self, review: Review) -> AdmissionAnswer:
        """The answer to a review; an error of any kind is a denial."""
        try:
            find = partial(self.reader.find, policies=self.rules.policies)
            return answer(review, self.rules, find, self._vouched, datetime.now(UTC))
        except CannotDecide as error:
            self.report(str(error))
            return denied(f"nothing is admitted: {error}", 503)
        except UserError as error:
            self.report(str(error))
            return denied("the evidence store cannot be read, so nothing is admitted", 503)
        except Exception as error:
            self.report(f"{type(error).__name__}: {error}")
            return denied("the decision failed, so nothing is admitted", 500)

    def _vouched(self, run: DecidedRun) -> SignedRun:
        if self.signed is None:
            return SignedRun(run)
        return as_signed(run, tuple(self.signed.of_run(self.reader, run.run)), self.rules.policies)


def application(webhook: Webhook) -> Starlette:
    """The routes: the webhook, liveness, and readiness (the store can be read)."""
    limiter = anyio.CapacityLimiter(THREADS)

    async def validate(request: Request) -> Response:
        try:
            review = read_review(await _body(request))
        except MalformedReview as error:
            if error.uid is None:
                return JSONResponse({"message": str(error)}, 400)
            return JSONResponse(response(error.uid, denied(str(error), 400)))
        except ClientDisconnect:
            return JSONResponse({"message": "the client is gone"}, 400)
        return JSONResponse(response(review.uid, await _decided(webhook, review, limiter)))

    async def ready(_request: Request) -> Response:
        probe = Review("probe", "Pod", "-", {"target": f"sha256:{'0' * 64}"})
        outcome = await _decided(webhook, probe, limiter)
        readable = outcome.code == 403
        return JSONResponse({"message": "ready" if readable else outcome.message}, 200 if readable else 503)

    async def live(_request: Request) -> Response:
        return JSONResponse({"message": "alive"})

    return Starlette(routes=[Route(PATH, validate, methods=["POST"]), Route("/readyz", ready), Route("/livez", live)])


async def _decided(webhook: Webhook, review: Review, limiter: anyio.CapacityLimiter) -> AdmissionAnswer:
    try:
        with anyio.fail_after(webhook.timeout_s):
            return await anyio.to_thread.run_sync(webhook.decide, review, abandon_on_cancel=True, limiter=limiter)
    except TimeoutError:
        webhook.report(f"the store did not answer within {webhook.timeout_s:g} s")
        return denied("the evidence store did not answer in time, so nothing is admitted", 504)


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise MalformedReview("the content type is not application/json")
    parts, size = list[Any](), 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise MalformedReview(f"the body is larger than {MOST_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
