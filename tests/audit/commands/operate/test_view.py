"""`audit view` as a command: one line at the start, one line of refusal, a clean end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text

from audit.view.drawer import PROCESSES
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, made_store


@pytest.mark.medium
def test_what_cannot_be_served_is_one_line(tmp_path):
    url = made_store(tmp_path)
    (tmp_path / "old").mkdir()
    old = made_store(tmp_path / "old")
    with connected(old) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
        connection.commit()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusals = {
            "no such store": invoke("view", "--no-open", "--store", str(tmp_path / "none.db")),
            "the store has revision": invoke("view", "--no-open", "--store", old),
            f"--port {port}: cannot listen there": invoke("view", "--no-open", "--store", url, "--port", str(port)),
            "--host 0.0.0.0: the pages are for this machine": invoke("view", "--host", "0.0.0.0", "--store", url),
        }
    for words, done in refusals.items():
        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_prints_one_line_serves_and_leaves_nothing_behind(tmp_path, end):
    command = [sys.executable, "-m", "audit", "view", "--no-open", "--store", made_store(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
        try:
            line = server.stderr.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/open\?token=\S+", line)[0]
            with httpx2.Client(trust_env=False, timeout=20) as client:
                assert client.get(address).status_code == 200
                assert "smoke" in client.get(address.partition("/open")[0]).text
                assert client.get(f"{address}x").status_code == 403
            drawing = children(server.pid)
            assert sum(b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in drawing) == PROCESSES
            server.send_signal(end)
            out, errors = server.communicate(timeout=20)
        finally:
            server.kill()
    # the standard library's tracker says which semaphores of the pools it removes after their owner was killed
    errors = re.sub(r".*resource_tracker.*\n.*warnings\.warn\(.*\n", "", errors) if end != signal.SIGINT else errors
    assert (server.returncode, out, errors) == (0 if end == signal.SIGINT else -end, "", "")
    until(lambda: not any(running(pid) for pid in drawing))


def children(pid):
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # what adopts orphans may not have collected it
    return state != "Z"


def until(holds):
    last = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.05)
