"""The dashboard and the alert rules of `audit watch`: by Grafana's types, and in a real Prometheus over real pages."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
DASHBOARD, RULES = DEPLOY / "watch-dashboard.json", DEPLOY / "watch-rules.yaml"
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
  - {{job_name: server, static_configs: [{{targets: ['{server}']}}]}}
  - {{job_name: watch, metrics_path: /watch.prom, static_configs: [{{targets: ['{files}']}}]}}
"""
RULE_TESTS = """\
rule_files: ['{rules}']
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'specaudit_watch_alarms_total{{model_name="fell",url="u"}}', values: '0x20 1x100'}}
      - {{series: 'specaudit_watch_alarms_total{{model_name="steady",url="u"}}', values: '3x120'}}
      - {{series: 'specaudit_watch_gap{{model_name="blind",url="u"}}', values: '0x10 1x110'}}
      - {{series: 'specaudit_watch_gap{{model_name="blinked",url="u"}}', values: '0x10 1x9 0x100'}}
      - {{series: 'specaudit_watch_last_reading_timestamp_seconds{{model_name="m",url="stopped"}}', values: '0x120'}}
      - {{series: 'specaudit_watch_last_reading_timestamp_seconds{{model_name="m",url="runs"}}', values: '0+60x120'}}
      - {{series: 'specaudit_watch_canary_changed{{label="canary",model_name="other",url="u"}}', values: '0x20 1x100'}}
      - series: 'specaudit_watch_canary_changed{{label="canary",model_name="rounded",url="u"}}'
        values: '1x9 0 1x9 0 1x9 0 1x9 0 1x9 0 1x9 0'
    alert_rule_test:
      - {{eval_time: 40m, alertname: SpeculationCanaryChanged, exp_alerts: []}}
      - eval_time: 55m
        alertname: SpeculationCanaryChanged
        exp_alerts: [{{exp_labels: {{severity: info, model_name: other, url: u, label: canary}}}}]
      - {{eval_time: 20m, alertname: SpeculationAcceptanceFell, exp_alerts: []}}
      - eval_time: 25m
        alertname: SpeculationAcceptanceFell
        exp_alerts: [{{exp_labels: {{severity: critical, model_name: fell, url: u}}}}]
      - {{eval_time: 90m, alertname: SpeculationAcceptanceFell, exp_alerts: []}}
      - {{eval_time: 20m, alertname: SpeculationWatchBlind, exp_alerts: []}}
      - eval_time: 30m
        alertname: SpeculationWatchBlind
        exp_alerts: [{{exp_labels: {{severity: warning, model_name: blind, url: u}}}}]
      - {{eval_time: 14m, alertname: SpeculationWatchStopped, exp_alerts: []}}
      - eval_time: 16m
        alertname: SpeculationWatchStopped
        exp_alerts: [{{exp_labels: {{severity: warning, model_name: m, url: stopped}}}}]
"""
prometheus_needed = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the package prometheus")


def expressions():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def test_the_dashboard_is_what_its_source_builds():
    from docs.tools.watch_dashboard import built

    assert DASHBOARD.read_text() == built()


def test_grafanas_types_read_the_dashboard():
    from grafana_foundation_sdk.models.dashboard import Dashboard

    read = Dashboard.from_json(json.loads(DASHBOARD.read_text()))
    assert read.title == "Speculative decoding, watched"
    assert len(read.panels) == 12
    assert len({(panel.grid_pos.x, panel.grid_pos.y) for panel in read.panels}) == 12


def shortened(rules):
    """The rules without annotations, which promtool would compare word by word."""
    return re.sub(r"\n        annotations:\n(?:          .*\n)+", "\n", rules)


@pytest.mark.slow
@prometheus_needed
def test_each_alert_fires_when_it_should_and_only_then(tmp_path):
    bare, tests = tmp_path / "rules.yaml", tmp_path / "tests.yaml"
    bare.write_text(shortened(RULES.read_text()))
    tests.write_text(RULE_TESTS.format(rules=bare))
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "4 rules found" in checked.stdout
    tested = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@contextmanager
def files_of(folder):
    """A server of a folder's files; its address."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def guess_type(self, _path):
            return "text/plain"

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus(folder, **addresses):
    """A real Prometheus over the addresses; its own address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=RULES, **addresses))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def answered(address, expression):
    """The values of an expression now; none while Prometheus starts."""
    try:
        found = httpx2.get(f"{address}/api/v1/query", params={"query": expression}, timeout=10, trust_env=False)
    except httpx2.TransportError:
        return []
    if found.status_code == 503:
        return []
    document = found.json()
    assert document["status"] == "success", document
    return [float(each["value"][1]) for each in document["data"]["result"]]


def complete(server, count):
    for seed in range(count):
        body = {"model": server.model, "prompt": "a", "max_tokens": 24, "temperature": 1.0, "seed": seed}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        sent = httpx2.post(f"{server.url}/completions", json=body, headers=headers, timeout=60, trust_env=False)
        sent.raise_for_status()


@pytest.mark.slow
@prometheus_needed
@pytest.mark.xdist_group("serve")
def test_every_panel_has_data_in_a_real_prometheus(tmp_path, monkeypatch):
    """`audit serve` counts, `audit watch` judges, Prometheus reads both, and each panel's expressions answer."""
    pages, store = tmp_path / "pages", str(tmp_path / "watch.db")
    pages.mkdir()
    canary = tmp_path / "canary.jsonl"
    canary.write_text('{"id": "a", "tokens": [3, 4]}\n')
    options = ("--store", store, "--reference", "0.02", "--textfile", str(pages / "watch.prom"))
    options += ("--canary", str(canary), "--api-key-env", "CANARY_KEY")
    monkeypatch.setenv("CANARY_KEY", TOKEN)
    left = dict.fromkeys(
        expression.replace("$model", ".*").replace("$__rate_interval", "30s") for _, expression in expressions()
    )
    with serving(tmp_path, "scripted:1", "--draft", "scripted:2") as server, files_of(pages) as files:
        assert invoke("watch", server.root, "--once", *options).exit_code == 3
        with prometheus(tmp_path, server=server.root.removeprefix("http://"), files=files) as address:
            until = time.monotonic() + 60
            while left and time.monotonic() < until:
                complete(server, 3)
                result = invoke("watch", server.root, "--once", *options)
                assert result.exit_code == 0, result.output
                time.sleep(1)
                left = {each: found for each in left if not (found := answered(address, each)) or found != found}
            assert not left, (left, (tmp_path / "prometheus.log").read_text()[-2000:])
            assert len(answered(address, "specaudit_watch_acceptance")) == 1
            assert answered(address, 'ALERTS{alertstate="firing"}') == []


@pytest.mark.slow
@prometheus_needed
def test_the_history_of_the_picture_fills_every_panel_and_shows_the_fall(tmp_path):
    """Its server loses a fifth of the acceptance at a known minute: alarms follow, and none comes before."""
    from docs.tools.dashboard_history import BEGUN, FALLS_AT, MINUTES, answers, history, prometheus_of

    with prometheus_of(history(tmp_path / "watch.db"), tmp_path) as address:
        found = answers(address, json.loads(DASHBOARD.read_text()))
    panels = {panel["title"]: panel["curves"] for panel in found["panels"]}
    assert len(panels) == 12
    for title, curves in panels.items():
        assert curves, title
        for curve in curves:
            assert sum(value is not None for value in curve["values"]) > MINUTES / 2, (title, curve["legend"])
    (alarms,) = panels["Alarms in a day"]
    fell = (BEGUN.timestamp() + FALLS_AT * 60) * 1000
    assert max(value for at, value in zip(alarms["times"], alarms["values"], strict=True) if at < fell) == 0
    assert alarms["values"][-1] > 1
