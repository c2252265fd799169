"""A canary: the same greedy requests at every reading, what they had accepted, and whether their answers changed.

What their drafts were is known in two ways. A server that gives each answer its own account (vLLM with
`--per-request-spec-decode-metrics`, `audit serve`) tells it whatever else it serves. Otherwise the counters before and
after are compared; they count only if nobody else used the server meanwhile: no request was in progress at either end,
and as many requests ended as the canary sent. A reading without this proof is a gap.

Cannot see: why an answer changed. Greedy answers also change where rounding decides a near tie, as under other batches.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.store.reading.watches import WatchReading
from audit.suite.prompts import Workload, read_prompts
from audit.suite.spec import Case
from audit.watch.growth import reading
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.response import Completion, read
from engine.backends.openai.server_counters import SETTLE, ServerCounters

CANARY: Final = "canary"
"""Label of the series; a row with a domain of its own adds it: `canary chat`."""
DIGITS: Final = 16
"""Hexadecimal digits that are kept of a digest."""
COUNTED: Final = ("steps", "drafted", "accepted")
LOST: Final = "the server restarted during the canary"


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """One request without the model's name; `name` is the row's id."""

    name: str
    label: str
    path: str
    body: Mapping[str, Any]


def canary_requests(path: Path, tokens: int) -> tuple[CanaryRequest, ...]:
    """The requests of a prompt file, by label; each asks for `tokens` greedy tokens at most.

    Raises:
        UserError: the file is no prompt file, or a row needs more than a prompt.
    """
    cases = read_prompts(Workload(CANARY, path, "")).cases
    made = (_request(path, case, tokens) for case in cases)
    return tuple(sorted(made, key=lambda request: request.label))


def _request(path: Path, case: Case, tokens: int) -> CanaryRequest:
    name = case.id.removeprefix(f"{CANARY}/")
    if case.tools or case.structured is not None:
        raise UserError(f"{path}: row {name}: a canary takes no tools and no grammar; remove them or the row")
    greedy = {"max_tokens": tokens, "temperature": 0.0, "seed": 0}
    label = f"{CANARY} {case.domain}".rstrip()
    if case.messages:
        return CanaryRequest(name, label, "/chat/completions", {"messages": list(case.messages), **greedy})
    return CanaryRequest(name, label, "/completions", {"prompt": list(case.tokens) or case.prompt, **greedy})


class Canary:
    """The requests with the ways to send them.

    Args:
        requests: by label.
        ask: sends a body to a path; raises `AttemptError`.
        counters: reads the counters of every model; raises `AttemptError`.
        pause: waits for that many seconds.
    """

    def __init__(
        self,
        requests: Sequence[CanaryRequest],
        ask: Callable[[str, Mapping[str, Any]], Any],
        counters: Callable[[], Mapping[str, ServerCounters]],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._requests = tuple(requests)
        self._ask, self._counters, self._pause = ask, counters, pause

    def readings(
        self, model: str, before: ServerCounters, clock: Callable[[], datetime], first: Mapping[str, str]
    ) -> Iterator[WatchReading]:
        """A reading for each label; `first` has the digests of the answers that were seen first.

        Every reading has answers and, unless the page could not be read behind them, counters.
        """
        for label, group in groupby(self._requests, key=lambda request: request.label):
            requests, begun = list(group), clock()
            try:
                completions, digests = self._answers(model, requests)
                after = self._settled(model, before, len(requests))
            except AttemptError as error:
                failed = WatchReading(model, clock(), gap=f"the canary failed: {error}", label=label, answers="{}")
                # some of its requests may have drafted
                before = self._after_failure(model)
                yield replace(failed, counters=_kept(before))
                continue
            made = _read(model, clock(), begun, before, after, completions)
            changed = sum(first.get(key, digest) != digest for key, digest in digests.items())
            yield replace(made, label=label, answers=json.dumps(digests), changed=changed, counters=_kept(after))
            before = after

    def _after_failure(self, model: str) -> ServerCounters:
        """The counters behind a failed replay; none if they cannot be read either."""
        try:
            return self._counters().get(model, ServerCounters())
        except AttemptError:
            return ServerCounters()

    def _answers(self, model: str, requests: Sequence[CanaryRequest]) -> tuple[list[Completion], dict[str, str]]:
        """The answers of one replay, and digests of them by request."""
        completions, digests = [], {}
        for request in requests:
            body = {"model": model, **request.body}
            completion = read(self._ask(request.path, body))
            completions.append(completion)
            digests[f"{request.name} {_digest(request.path, body)}"] = _digest(completion.text, completion.finish)
        return completions, digests

    def _settled(self, model: str, before: ServerCounters, sent: int) -> ServerCounters:
        """The counters once they have all answers, or as they are after a while."""
        after = self._counters().get(model, ServerCounters())
        for seconds in SETTLE:
            if not after.active and (after.requests or 0.0) - (before.requests or 0.0) >= sent:
                break
            self._pause(seconds)
            after = self._counters().get(model, ServerCounters())
        return after


def _kept(counters: ServerCounters) -> str | None:
    """Where the next reading of the whole traffic begins, so that the canary is no part of it."""
    return counters.to_json() if counters != ServerCounters() else None


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _read(
    model: str,
    at: datetime,
    begun: datetime,
    before: ServerCounters,
    after: ServerCounters,
    completions: Sequence[Completion],
) -> WatchReading:
    """Tokens drafted and accepted in the canary's requests, by their own account or the counters."""
    made = reading(model, at, after, before, begun)
    own = [completion.speculation for completion in completions]
    if all(account is not None and all(name in account for name in COUNTED) for account in own):
        drafts, drafted, accepted = (sum(account[name] for account in own if account) for name in COUNTED)
        length = 1.0 + accepted / drafts if drafts else None
        sums = {"drafts": drafts, "drafted": drafted, "accepted": accepted, "acceptance_length": length}
        return WatchReading(model, at, (at - begun).total_seconds(), requests=len(own), **sums)
    lost = LOST if made.restarted else None
    return replace(made, gap=lost or _mixed(before, after, len(completions)) or made.gap)


def _mixed(before: ServerCounters, after: ServerCounters, sent: int) -> str | None:
    """Why the growth may be of more than the canary; None if it is the canary's alone."""
    if before.active is None or after.active is None:
        return "the server reports no requests in progress, so other traffic may be mixed in"
    if before.active or after.active:
        return "other requests were in progress, so their drafts are mixed in"
    grown = round((after.requests or 0.0) - (before.requests or 0.0))
    if grown < sent:
        return f"only {grown} of the canary's {sent} requests were counted"
    return f"{grown - sent} other requests ended meanwhile, so their drafts are mixed in" if grown > sent else None
