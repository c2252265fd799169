"""vLLM's own server, alone and with a draft, on free ports; ended by its process id."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import httpx2

from .setting import REFERENCE, ROOT

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
}
PATIENCE = 300
"""Seconds until a server answers: 20 to 50 on two quiet cores."""
SHAPE = ("--dtype", "float32", "--max-model-len", "640", "--max-num-seqs", "4", "--enforce-eager")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def command(port, speculative, options=()):
    model = ("--model", str(REFERENCE / "target"), "--served-model-name", "bundled")
    more = ("--speculative-config", json.dumps(speculative), "--per-request-spec-decode-metrics", "detailed")
    place = ("--host", "127.0.0.1", "--port", str(port))
    module = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    return [*module, *model, *place, *SHAPE, *TOOLS, *(more if speculative else ()), *options]


@contextlib.contextmanager
def started(log, speculative=None, port=None, options=(), level="WARNING"):
    """The address of a server that is starting, on a free port by default; `level` is that of its log."""
    port = port or free_port()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command(port, speculative, options),
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": level},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield Starting(port, process, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


class Starting:
    """A server on its way."""

    def __init__(self, port, process, log):
        self.port, self.process, self.log = port, process, log
        self.root = f"http://127.0.0.1:{port}"

    @property
    def url(self):
        return f"{self.root}/v1"

    def ready(self):
        """Wait until it answers."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.root}/health", timeout=5, trust_env=False).status_code == 200:
                    return self
            time.sleep(1)
        raise RuntimeError(f"vLLM's server does not answer:\n{self.log.read_text(errors='replace')[-4000:]}")
