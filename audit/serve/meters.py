"""The page `/metrics`, with the names that vLLM gives its own metrics, so that its readers read this server.

Counters of drafts are there exactly if the server drafts, as in vLLM.
"""

import time
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
REASONS: Final = {"eos": "stop", "filter": "content_filter"}
"""Reasons with another name in vLLM."""
LABELS: Final = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class _Drafts:
    drafts: Counter
    drafted: Counter
    accepted: Counter
    by_place: Counter


class ServeMeters:
    """All metrics of one server. `gamma` is 0 for a server that drafts nothing. Any thread may call."""

    def __init__(self, model: str, gamma: int) -> None:
        self._registry = CollectorRegistry()
        self._labels = (model, "0")
        self._running = self._gauge("num_requests_running", "Choices in rows of the batch.")
        self._waiting = self._gauge("num_requests_waiting", "Choices that wait for a row.")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.")
        self._generated = self._counter("generation_tokens", "Committed tokens.")
        self._ends = self._counter("request_success", "Ended choices by reason.", "finished_reason")
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to the first tokens.")
        self._between = self._histogram("inter_token_latency_seconds", "Between two steps of a choice.")
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the end.")
        self._queued = self._histogram("request_queue_time_seconds", "Waiting for a row.")
        self._inference = self._histogram("request_inference_time_seconds", "In a row.")
        self._prompts = self._histogram("request_prompt_tokens", "Tokens of a prompt.", COUNTS)
        self._lengths = self._histogram("request_generation_tokens", "Tokens of an answer.", COUNTS)
        self._gamma = gamma
        self._drafts = self._of_drafts() if gamma else None

    def load(self, running: int, waiting: int) -> None:
        """How many choices run and wait now."""
        self._running.labels(*self._labels).set(running)
        self._waiting.labels(*self._labels).set(waiting)

    def started(self, waited: float, prompt: int) -> None:
        """A choice got a row after `waited` seconds."""
        self._queued.labels(*self._labels).observe(waited)
        self._prompts.labels(*self._labels).observe(prompt)
        self._prompt.labels(*self._labels).inc(prompt)

    def stepped(self, tokens: int, seconds: float, drafted: int, accepted: int, *, first: bool) -> None:
        """A step committed tokens, `seconds` after the one before it or, the `first`, after the arrival."""
        (self._first if first else self._between).labels(*self._labels).observe(seconds)
        self._generated.labels(*self._labels).inc(tokens)
        if self._drafts is not None and drafted:
            self._drafts.drafts.labels(*self._labels).inc()
            self._drafts.drafted.labels(*self._labels).inc(drafted)
            self._drafts.accepted.labels(*self._labels).inc(accepted)
            for place in range(accepted):
                self._drafts.by_place.labels(*self._labels, str(place)).inc()

    def ended(self, reason: str, tokens: int, seconds: float, started: float) -> None:
        """A choice ended; `started` is the moment at which it got its row, 0 if it got none."""
        self._ends.labels(*self._labels, REASONS.get(reason, reason)).inc()
        self._whole.labels(*self._labels).observe(seconds)
        self._lengths.labels(*self._labels).observe(tokens)
        if started:
            self._inference.labels(*self._labels).observe(time.perf_counter() - started)

    def page(self) -> bytes:
        """The page in Prometheus' text format."""
        page: bytes = generate_latest(self._registry)
        return page

    def _of_drafts(self) -> _Drafts:
        result = _Drafts(
            self._counter("spec_decode_num_drafts", "Steps with a draft."),
            self._counter("spec_decode_num_draft_tokens", "Drafted tokens."),
            self._counter("spec_decode_num_accepted_tokens", "Accepted drafted tokens."),
            self._counter("spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by place.", "position"),
        )
        # a reader subtracts two pages, so every place is there from the beginning
        for place in range(self._gamma):
            result.by_place.labels(*self._labels, str(place))
        for counter in (result.drafts, result.drafted, result.accepted):
            counter.labels(*self._labels)
        return result

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"vllm:{name}", meaning, LABELS, registry=self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", meaning, (*LABELS, *labels), registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        return Histogram(f"vllm:{name}", meaning, LABELS, registry=self._registry, buckets=buckets)
