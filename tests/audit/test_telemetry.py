"""Spans and metrics of OpenTelemetry: the numbers are the record's, and a missing collector costs no record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from audit.store import Store
from audit.store.reading.watches import WatchReading
from tests.audit.invoke import invoke

SUITE = """\
version: 1
name: told
backend: scripted
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: w, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 24}
coverage: {directed: "off"}
arms:
  - {name: a, proposer: {kind: draft_model, model: draft, gamma: 3}, verifier: greedy}
"""
PROMPT = "a secret prompt"


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "prompts.jsonl").write_text(f'{{"prompt": "{PROMPT}"}}\n{{"prompt": "b"}}\n')
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path / "suite.yaml"


def in_memory(provider="scripted", model="m"):
    """Instruments over the SDK's own exporters in memory."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from audit.terminal.telemetry import instruments

    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    return instruments(provider, model, tracers, MeterProvider([reader])), spans, reader


def points(reader):
    """Sums and counts by instrument and attributes."""
    data = reader.get_metrics_data()
    metrics = [one for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
    return {
        (one.name, *(point.attributes.get(key) for key in ("gen_ai.token.type", "specaudit.kind"))): (
            getattr(point, "sum", None) if hasattr(point, "sum") else point.value
        )
        for one in metrics
        for point in one.data.data_points
        if point.attributes.get("specaudit.arm", "a") == "a"
    }


@pytest.mark.medium
def test_spans_have_the_numbers_of_the_record_and_no_text(suite, tmp_path):
    store = str(tmp_path / "runs.db")
    assert invoke("run", str(suite), "--store", store).exit_code in (0, 3)
    with Store.open(store, create=False, read_only=True) as opened:
        run = opened.resolve("latest")
        arm = opened.load_arm(run, "a")
        stored = list(arm.requests)
    told, spans, reader = in_memory()
    from audit.store.writing.request_writer import NewRequest
    from engine.core.types import Generation, Request
    from engine.record.trace import encode

    batch = []
    for record in stored:
        header = record.trace.header
        made = Request(header.request, header.prompt, header.sampling, header.stream)
        answer = Generation(made, record.tokens, record.finish_reason, encode(record.trace), record.text, 5000)
        batch.append(NewRequest("a", record.domain, record.case_id, record.sample, answer))
    told.recorded(run, batch)
    finished = spans.get_finished_spans()
    assert len(finished) == len(stored) == 2
    for span, record in zip(finished, stored, strict=True):
        seen = span.attributes
        assert span.name == "text_completion m"
        assert span.end_time - span.start_time == 5_000_000
        assert seen["gen_ai.usage.output_tokens"] == len(record.tokens) == 24
        assert seen["gen_ai.response.finish_reasons"] == (record.finish_reason.value,)
        assert list(seen["specaudit.step.drafted"]) == record.trace.n_drafted.tolist()
        assert sum(seen["specaudit.step.accepted"]) == record.trace.n_accepted
        assert len(seen["specaudit.step.accepted"]) == record.trace.steps
        emitted = [count - 1 for count in record.trace.n_emitted.tolist()]
        # the last step may be cut inside its draft, and then all that it emitted was drafted
        assert list(seen["specaudit.step.accepted"])[:-1] == emitted[:-1]
        assert PROMPT not in str(dict(seen))
        assert record.text not in str(dict(seen))
    counted = points(reader)
    assert counted["gen_ai.client.token.usage", "output", None] == 48
    drafted = sum(record.trace.n_drafted.sum() for record in stored)
    assert counted["specaudit.draft.tokens", None, "drafted"] == drafted
    assert counted["specaudit.draft.tokens", None, "accepted"] == sum(record.trace.n_accepted for record in stored)
    assert counted["gen_ai.server.request.duration", None, None] == pytest.approx(0.01)


def test_readings_of_a_watch():
    told, spans, reader = in_memory("watched", "http://x")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    told.looked(
        [
            WatchReading("m", at, seconds=60.0, drafted=100, accepted=60),
            WatchReading("m", at, seconds=60.0, drafted=100, accepted=10, alarm="fall"),
            WatchReading("m", at, seconds=60.0, drafted=40, accepted=1, label="domain=x"),
            WatchReading("", at, gap="nothing there"),
        ]
    )
    first, alarm, part, gap = spans.get_finished_spans()
    assert first.name == "watch m"
    assert first.end_time - first.start_time == 60_000_000_000
    assert alarm.attributes["specaudit.watch.alarm"] == "fall"
    assert part.attributes["specaudit.watch.label"] == "domain=x"
    assert gap.attributes["specaudit.watch.gap"] == "nothing there"
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    sums = {one.name: sum(point.value for point in one.data.data_points) for one in data}
    assert sums == {"specaudit.draft.tokens": 270, "specaudit.watch.alarms": 1}


@contextmanager
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """A receiver of OTLP over HTTP; what came, by path."""
    got: dict[str, list[bytes]] = {}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            content = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            got.setdefault(self.path, []).append(gzip.decompress(content) if packed else content)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.medium
def test_a_run_reaches_a_collector_by_its_protocol(suite, tmp_path):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    store = str(tmp_path / "runs.db")
    with collector() as (url, got):
        done = invoke("run", str(suite), "--store", store, "--telemetry", url)
        assert done.exit_code in (0, 3), done.output
    spans = [
        span
        for content in got["/v1/traces"]
        for resource in ExportTraceServiceRequest.FromString(content).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    arms = [next(item.value.string_value for item in span.attributes if item.key == "specaudit.arm") for span in spans]
    assert arms.count("a") == 2
    with Store.open(store, create=False, read_only=True) as opened:
        assert len(spans) == len(opened.finished(opened.resolve("latest")))
    names = {
        metric.name
        for content in got["/v1/metrics"]
        for resource in ExportMetricsServiceRequest.FromString(content).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"gen_ai.server.request.duration", "gen_ai.client.token.usage", "specaudit.draft.tokens"} <= names
    assert not any(PROMPT.encode() in content for contents in got.values() for content in contents)


@pytest.mark.slow
def test_a_collector_that_is_not_there_changes_no_verdict(suite, tmp_path):
    plain = invoke("run", str(suite), "--store", str(tmp_path / "plain.db"))
    told = invoke("run", str(suite), "--store", str(tmp_path / "told.db"), "--telemetry", "http://127.0.0.1:9")
    assert told.exit_code == plain.exit_code
    assert "Traceback" not in told.output


def test_an_address_that_is_none_is_refused_before_the_run(suite, tmp_path):
    done = invoke("run", str(suite), "--store", str(tmp_path / "runs.db"), "--telemetry", "localhost:4318")
    assert done.exit_code == 2
    assert "--telemetry localhost:4318: write an address such as http://127.0.0.1:4318" in done.stderr
