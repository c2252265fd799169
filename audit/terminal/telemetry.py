"""OpenTelemetry of recorded requests and of a watch, by the semantic conventions for generative AI; no text leaves.

Spans and metrics go to a collector by OTLP over HTTP. A span begins and ends as the request did by its own latency,
with the moment of its record as the end, and has the counts of drafted and accepted tokens of each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from audit.errors import UserError, needs

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from audit.store import Store
    from audit.store.reading.watches import WatchReading
    from audit.store.writing.request_writer import NewRequest
    from engine.core.types import Generation

NAME: Final = "specaudit"
PATIENCE_S: Final = 5
"""Seconds that a collector has for each batch, and for the rest at the end."""
WATCHED: Final = (
    "drafted",
    "accepted",
    "requests",
    "errors",
    "latency_p50_s",
    "latency_p95_s",
    "gap",
    "alarm",
    "label",
)
"""Fields of a reading that its span has, where they are known."""


def telemetry_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--telemetry URL`."""
    words = "Send spans and metrics to the OpenTelemetry collector at URL, such as http://127.0.0.1:4318."
    return click.option("--telemetry", metavar="URL", help=words)(function)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The instruments of one process. `provider` and `model` are the attributes of all that it sends."""

    provider: str
    model: str
    tracer: Tracer
    duration: Histogram
    usage: Histogram
    drafts: Counter
    alarms: Counter

    def recorded(self, run: str, batch: Sequence[NewRequest]) -> None:
        """A span for each request of a run, once it is in the store, and its share of the metrics."""
        end = time.time_ns()
        for new in batch:
            made = new.generation
            common = self._common(made)
            self.duration.record(made.latency_us / 1e6, common)
            for kind, count in (("input", len(made.request.prompt)), ("output", len(made.tokens))):
                self.usage.record(count, {**common, "gen_ai.token.type": kind})
            counts = _steps(made)
            for kind in counts:
                self.drafts.add(sum(counts[kind]), {**common, "specaudit.kind": kind, "specaudit.arm": new.arm})
            own = {"specaudit.run": run, "specaudit.arm": new.arm, "specaudit.domain": new.domain}
            steps = {f"specaudit.step.{kind}": values for kind, values in counts.items()}
            attributes = {**common, **_request(made), **own, **steps}
            name = f"{common['gen_ai.operation.name']} {self.model}"
            span = self.tracer.start_span(name, start_time=end - made.latency_us * 1000, attributes=attributes)
            span.end(end)

    def looked(self, readings: Sequence[WatchReading]) -> None:
        """A span for each reading of a watch, and its growth as metrics."""
        for reading in readings:
            known = {key: getattr(reading, key) for key in WATCHED if getattr(reading, key) is not None}
            model = {"gen_ai.request.model": reading.model, "gen_ai.provider.name": self.provider}
            end = round(reading.at.timestamp() * 1e9)
            attributes = {**model, **{f"specaudit.watch.{key}": value for key, value in known.items()}}
            begin = end - round((reading.seconds or 0.0) * 1e9)
            self.tracer.start_span(f"watch {reading.model}", start_time=begin, attributes=attributes).end(end)
            if reading.label is None:
                for kind in ("drafted", "accepted"):
                    self.drafts.add(known.get(kind, 0), {**model, "specaudit.kind": kind})
                self.alarms.add(int(reading.alarm is not None), model)

    def _common(self, made: Generation) -> dict[str, Any]:
        operation = "chat" if made.request.tools is not None else "text_completion"
        names = {"gen_ai.operation.name": operation, "gen_ai.provider.name": self.provider}
        return {**names, "gen_ai.request.model": self.model}


def _request(made: Generation) -> Mapping[str, Any]:
    """Attributes of the conventions that hold for one request."""
    sampling = made.request.sampling
    asked = {key: getattr(sampling, key) for key in ("temperature", "top_p", "seed")}
    asked |= {key: getattr(sampling, key) for key in ("frequency_penalty", "presence_penalty")}
    return {
        **{f"gen_ai.request.{key}": value for key, value in asked.items()},
        "gen_ai.request.top_k": float(sampling.top_k),
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
        "gen_ai.response.id": made.request.id,
        "gen_ai.response.finish_reasons": [made.finish_reason.value],
        "gen_ai.usage.input_tokens": len(made.request.prompt),
        "gen_ai.usage.output_tokens": len(made.tokens),
    }


def _steps(made: Generation) -> dict[str, list[int]]:
    """Drafted and accepted tokens of each step; empty for a request without a record of steps."""
    if not made.trace:
        return {}
    import numpy as np

    from engine.core.types import Role
    from engine.record.trace import decode

    trace = decode(made.trace)
    owner = np.repeat(np.arange(trace.steps), trace.n_emitted)
    accepted = np.bincount(owner[trace.role == Role.ACCEPTED], minlength=trace.steps)
    return {"drafted": list(map(int, trace.n_drafted)), "accepted": list(map(int, accepted))}


def instruments(provider: str, model: str, tracers: TracerProvider, meters: MeterProvider) -> Telemetry:
    """The instruments over an SDK's providers; `provider` is the engine or backend that answers."""
    meter = meters.get_meter(NAME)
    return Telemetry(
        provider,
        model,
        tracers.get_tracer(NAME),
        meter.create_histogram("gen_ai.server.request.duration", "s", "Duration of a recorded request."),
        meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of prompts and answers."),
        meter.create_counter("specaudit.draft.tokens", "{token}", "Drafted and accepted tokens."),
        meter.create_counter("specaudit.watch.alarms", "{alarm}", "Alarms of a watch."),
    )


@contextmanager
def telling(store: Store, url: str | None, provider: str, model: str) -> Iterator[Telemetry | None]:
    """Send what the store records to a collector, and the rest at the end; nothing without a URL.

    A collector that does not answer costs its spans and no record.

    Raises:
        UserError: the URL has no scheme of HTTP, or the packages are missing.
    """
    if url is None:
        yield None
        return
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--telemetry {url}: write an address such as http://127.0.0.1:4318")
    with needs("telemetry"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    resource, base = Resource({"service.name": NAME}), url.rstrip("/")
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", timeout=PATIENCE_S)))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics", timeout=PATIENCE_S))
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    made = instruments(provider, model, tracers, meters)
    store.listen(made.recorded)
    try:
        yield made
    finally:
        tracers.shutdown()
        meters.shutdown(timeout_millis=PATIENCE_S * 1000)
