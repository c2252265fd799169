"""Six hours of a simulated vLLM server under `audit watch`, in a real Prometheus: what the dashboard's panels show.

The server's pages, the readings, the detector and the textfile are the real code's, with a clock of their own;
only the traffic is simulated: two domains, of which one loses a fifth of its acceptance in the fourth hour.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import numpy as np

from audit.store import Store
from audit.store.reading.watches import WatchSettings
from audit.watch.canary import Canary, CanaryRequest
from audit.watch.follow import Follower
from audit.watch.messages import textfile
from engine.backends.openai.server_counters import by_model

MODEL: Final = "qwen3-8b"
BEGUN: Final = datetime(2026, 11, 1, 6, 0, tzinfo=UTC)
MINUTES: Final = 360
FALLS_AT: Final = 225
STEP: Final = 60
LASTED: Final = (MINUTES - 1) * STEP
"""Seconds from the first reading to the last."""
GAMMA: Final = 4
REFERENCE: Final = 0.46
DRAFTS: Final[Mapping[str, int]] = {"chat": 60, "code": 30}
"""Drafts of each domain in a minute, on average."""
ACCEPTED: Final[Mapping[str, tuple[float, float]]] = {"chat": (0.70, 0.56), "code": (0.82, 0.82)}
"""Acceptance of a drafted token, given those before it, before and after the fall."""
BUCKETS: Final = (0.5, 1.0, 2.5, 5.0)


@dataclass
class SimulatedServer:
    """Counters by domain; `minute` moves time on, `reply` answers a canary's request."""

    rng: np.random.Generator
    number: int = 0
    counts: dict[str, float] = field(default_factory=dict)

    def minute(self, number: int) -> None:
        """The drafts and the requests of one minute."""
        self.number = number
        swing = 1.0 + 0.3 * np.sin(number / 40.0)
        for domain, rate in DRAFTS.items():
            p = ACCEPTED[domain][number >= FALLS_AT]
            self._draft(domain, p, int(self.rng.poisson(rate * swing)))
            for seconds in self.rng.lognormal(0.1 - 0.5 * p, 0.5, int(self.rng.poisson(5 * swing))):
                self._ended(domain, seconds)

    def reply(self, _path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A canary's answer with its own account of drafts."""
        own = {"num_spec_steps": 10, "num_draft_tokens": 40, "num_accepted_draft_tokens": 26 + len(body["prompt"]) % 5}
        # one of two answers comes from rounding at times, and for good from the model after the fall
        other = len(body["prompt"]) == 1 and (self.number >= FALLS_AT or self.number % 90 == 60)
        choice = {"index": 0, "finish_reason": "length", "text": "another answer" if other else "an answer"}
        return {"choices": [choice], "metrics": {"speculative_decoding": own}}

    def page(self) -> str:
        """The page as vLLM writes it."""
        gauges = [f'vllm:num_requests_running{{model_name="{MODEL}"}} 0.0']
        return "\n".join([*(f"{series} {value}" for series, value in self.counts.items()), *gauges]) + "\n"

    def _draft(self, domain: str, p: float, drafts: int) -> None:
        kept = np.minimum(self.rng.geometric(1.0 - p, drafts) - 1, GAMMA)
        spec = "spec_decode_num"
        self._add(f"{spec}_drafts_total", domain, drafts)
        self._add(f"{spec}_draft_tokens_total", domain, drafts * GAMMA)
        self._add(f"{spec}_accepted_tokens_total", domain, int(kept.sum()))
        for place in range(GAMMA):
            count = int((kept > place).sum())
            self._add(f"{spec}_accepted_tokens_per_pos_total", domain, count, f',position="{place}"')

    def _ended(self, domain: str, seconds: float) -> None:
        reason = "stop" if self.rng.random() < 0.9 else "length"
        self._add("request_success_total", domain, 1, f',finished_reason="{reason}"')
        for end in (*BUCKETS, float("inf")):
            name = "+Inf" if end == float("inf") else str(end)
            self._add("e2e_request_latency_seconds_bucket", domain, int(seconds <= end), f',le="{name}"')

    def _add(self, name: str, domain: str, count: int, more: str = "") -> None:
        series = f'vllm:{name}{{model_name="{MODEL}",domain="{domain}"{more}}}'
        self.counts[series] = self.counts.get(series, 0.0) + count


def history(store: Path) -> dict[str, list[str]]:
    """Samples of six hours by series, each a value with its time, from the server's pages and the watch's textfile."""
    server, samples = SimulatedServer(np.random.default_rng(3)), dict[str, list[str]]()
    requests = [CanaryRequest(str(place), "canary", "/completions", {"prompt": "x" * place}) for place in range(2)]
    with Store.open(f"sqlite:///{store}", create=True) as opened:
        settings = WatchSettings("http://127.0.0.1:8000/metrics", None, REFERENCE, "given", None, None, 0.01, 60.0)
        watch = opened.watches.begin(settings, "a picture", BEGUN)
        canary = Canary(requests, server.reply, lambda: by_model(server.page()), pause=lambda _: None)
        follower = Follower(opened, watch, server.page, canary, ("domain",))
        for number in range(MINUTES):
            server.minute(number)
            at = BEGUN + timedelta(minutes=number)
            look = follower.look(lambda at=at: at)
            _take(samples, server.page(), at)
            _take(samples, textfile(watch, look.readings, follower.detectors), at)
    return samples


def _take(samples: dict[str, list[str]], page: str, at: datetime) -> None:
    for line in page.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            samples.setdefault(series, []).append(f"{value} {at.timestamp():.0f}")


@contextmanager
def prometheus_of(samples: Mapping[str, list[str]], folder: Path) -> Iterator[str]:
    """A real Prometheus that holds the samples; its address."""
    written = folder / "history.om"
    ordered = sorted(samples, key=lambda series: series.partition("{")[0])
    lines = [f"{series} {sample}" for series in ordered for sample in samples[series]]
    written.write_text("\n".join([*lines, "# EOF"]) + "\n")
    filled = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(written), str(folder / "data")]
    subprocess.run(filled, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1m}\n")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command += ["--storage.tsdb.retention.time=50y", f"--web.listen-address={address}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _require_ready(f"http://{address}")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def _require_ready(address: str) -> None:
    for _ in range(300):
        try:
            if httpx2.get(f"{address}/-/ready", trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"{address} did not get ready in 30 s")


def answers(address: str, dashboard: Mapping[str, Any]) -> dict[str, Any]:
    """What Prometheus answers to every expression of a dashboard over the six hours, panel by panel."""
    panels = [_panel(address, panel) for panel in dashboard["panels"]]
    begin = int(BEGUN.timestamp() * 1000)
    return {"from": begin, "to": begin + LASTED * 1000, "panels": panels}


def _panel(address: str, panel: Mapping[str, Any]) -> dict[str, Any]:
    grid = {name: panel["gridPos"][name] for name in "xywh"}
    unit = panel["fieldConfig"]["defaults"].get("unit", "none")
    curves = [curve for target in panel["targets"] for curve in _curves(address, target)]
    return {"title": panel["title"], "about": panel["description"], "unit": unit, **grid, "curves": curves}


def _curves(address: str, target: Mapping[str, Any]) -> list[dict[str, Any]]:
    # as Grafana does at a scrape interval of a minute
    expression = target["expr"].replace("$model", ".*").replace("$__rate_interval", "4m")
    asked = {"query": expression, "start": BEGUN.timestamp(), "end": BEGUN.timestamp() + LASTED, "step": STEP}
    found = httpx2.get(f"{address}/api/v1/query_range", params=asked, timeout=60, trust_env=False).json()
    if found["status"] != "success":
        raise ValueError(f"{expression}: {json.dumps(found)}")
    return [_curve(each, target["legendFormat"]) for each in found["data"]["result"]]


def _curve(found: Mapping[str, Any], legend: str) -> dict[str, Any]:
    named = re.sub(r"\{\{(\w+)\}\}", lambda match: found["metric"].get(match[1], ""), legend)
    times = [int(at * 1000) for at, _ in found["values"]]
    values = [None if value == "NaN" else float(value) for _, value in found["values"]]
    return {"legend": named, "times": times, "values": values}
