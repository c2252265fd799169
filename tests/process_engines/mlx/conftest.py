"""mlx_lm over the bundled models as servers, alone and with a draft of four tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.models.files.folder import bundled_folder

STARTUP_S = 180


@dataclass(frozen=True)
class MlxServer:
    """A running server."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def chat(self, messages: list[dict[str, str]], tokens: int) -> str:
        """The greedy answer to a chat."""
        body = json.dumps({"messages": messages, "temperature": 0, "max_tokens": tokens})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STARTUP_S)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with contextlib.closing(connection):
            return str(json.load(connection.getresponse())["choices"][0]["message"]["content"])


@pytest.fixture
def mlx(tmp_path, pytestconfig):
    """Starts servers; each ends with the test."""
    with contextlib.ExitStack() as running:
        yield lambda *more: running.enter_context(serving(pytestconfig.getoption("--mlx-python"), tmp_path, more))


@contextlib.contextmanager
def serving(python: str, folder: Path, more: tuple[str, ...]) -> Iterator[MlxServer]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = MlxServer(port, folder / f"{port}.log")
    hub = folder / "hub"  # without a hub's folder the list of models is empty
    hub.mkdir(exist_ok=True)
    command = [
        python,
        "-m",
        "mlx_lm",
        "server",
        "--model",
        str(bundled_folder("bundled:target")),
        "--port",
        str(port),
        *more,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub)}
    environment.pop("PYTHONPATH", None)
    with server.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        until_ready(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def until_ready(server: MlxServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), contextlib.closing(socket.create_connection(("127.0.0.1", server.port), 1)):
            return
        time.sleep(0.2)
    pytest.fail(f"mlx_lm did not start: {server.log.read_text()[-2000:]}")
