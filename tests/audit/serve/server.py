"""Real servers for tests: `audit serve` in a process of its own, on a port that it picks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

TOKEN = "a-token-of-tests-0123456789"
READY = re.compile(r"run (\S+) serves (\S+) at (\S+) until Ctrl-C")
START_S = 240


@dataclass
class RunningServer:
    """A server that has started."""

    process: subprocess.Popen[str]
    run: str
    model: str
    url: str
    store: str
    lines: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def stop(self, kind: int = signal.SIGTERM, seconds: float = 60) -> int:
        """End the server; its exit code."""
        self.process.send_signal(kind)
        return self.process.wait(seconds)


@contextmanager
def serving(folder: Path, model: str, *options: str) -> Iterator[RunningServer]:
    """A server over a model, with a store in the folder."""
    store, token = folder / "served.db", folder / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    arguments = ("serve", model, *options, "--port", "0", "--token-file", str(token), "--store", str(store))
    environment = os.environ | {"COLUMNS": "10000"}
    process = subprocess.Popen(
        [sys.executable, "-m", "audit", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield _started(process, str(store))
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _started(process: subprocess.Popen[str], store: str) -> RunningServer:
    assert process.stderr is not None
    lines = []
    timer = threading.Timer(START_S, process.kill)
    timer.start()
    try:
        for line in process.stderr:
            lines.append(line)
            found = READY.search(line)
            if found:
                server = RunningServer(process, found[1], found[2], found[3], store, lines)
                threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
                return server
    finally:
        timer.cancel()
    raise AssertionError("".join(lines))


def resident(server):
    """Megabytes of a process's memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def metric(server, name):
    page = httpx2.get(f"{server.root}/metrics").text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"vllm:{name}{{"))


def settled(server, seconds=30):
    """Wait until nothing runs."""
    end = time.monotonic() + seconds
    while metric(server, "num_requests_running") or metric(server, "num_requests_waiting"):
        assert time.monotonic() < end, "rows are not free"
        time.sleep(0.02)
