"""A server that means harm: whatever a request asks, it gets these bytes."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator

MIB = 2**20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
MODELS = json.dumps({"data": [{"id": "m", "max_model_len": 100_000}]}).encode()

Harm = Callable[[], Iterable[bytes]]


def whole(body: bytes, head: bytes = OK) -> Iterator[bytes]:
    yield head + b"Content-Length: %d\r\n\r\n" % len(body)
    yield body


def endless(head: bytes, part: bytes, pause_s: float = 0.0) -> Iterator[bytes]:
    yield head
    for _ in itertools.count():
        time.sleep(pause_s)
        yield part


def bomb(mebibytes: int) -> Iterator[bytes]:
    """That many of zeros, compressed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield OK + b"Content-Encoding: gzip\r\n\r\n"
    for _ in range(mebibytes):
        yield packer.compress(bytes(MIB))
    yield packer.flush()


def choice(**fields: object) -> bytes:
    message = {"role": "assistant", "content": "ab"}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop", **fields}]}).encode()


def with_text(text: str) -> bytes:
    return choice(message={"role": "assistant", "content": text})


HARMS: dict[str, Harm] = {
    "a compressed bomb": lambda: bomb(1536),
    "an endless body": lambda: endless(OK + b"\r\n", b" " * 65536),
    "an endless text": lambda: endless(OK + b'\r\n{"choices": ["', b"x" * 65536),
    "an endless error": lambda: endless(b"HTTP/1.1 400 Bad\r\n\r\n", b"x" * 65536),
    "endless events": lambda: endless(SSE, b'data: {"choices": []}\n\n' * 1000),
    "endless comments": lambda: endless(SSE, b": nothing\n\n" * 1000),
    "an endless line": lambda: endless(SSE, b"data: " + b"x" * 65536),
    "endless headers": lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n" * 100),
    "an endless header": lambda: endless(b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536),
    "headers that drip": lambda: endless(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.1),
    "a body that drips": lambda: endless(OK + b"\r\n", b" ", 0.1),
    "interim answers without end": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "endless chunk extensions": lambda: endless(OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 65536),
    "endless trailers": lambda: endless(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-More: yes\r\n", 0.001),
    "a length of an exbibyte": lambda: [OK + b"Content-Length: 1152921504606846976\r\n\r\n{"],
    "a negative length": lambda: [OK + b"Content-Length: -1\r\n\r\n{}"],
    "no protocol": lambda: [b"\x00\xff" * 1000],
    "deep lists": lambda: whole(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": lambda: whole(b'{"a": ' * 100_000 + b"1" + b"}" * 100_000),
    "nesting below the recursion limit": lambda: whole(b'{"choices": ' + b"[" * 500 + b"]" * 500 + b"}"),
    "a million empty lists": lambda: whole(b'{"choices": [' + b"[]," * 300_000 + b"[]]}"),
    "a number of a million digits": lambda: whole(b'{"choices": ' + b"9" * MIB + b"}"),
    "a long text": lambda: whole(with_text("x" * 900_000)),
    "a million token ids": lambda: whole(choice(token_ids=[1] * 250_000)),
    "numbers that are words": lambda: whole(
        choice(logprobs={"content": [{"token": "a", "logprob": "high", "bytes": [1e9]}]})
    ),
    "steps that are words": lambda: whole(
        json.dumps(
            {
                "choices": [{"message": {"content": 3}, "finish_reason": "stop"}],
                "metrics": {"speculative_decoding": {"per_step_drafted": ["x"], "per_step_accepted": [None]}},
            }
        ).encode()
    ),
    "a wait of ages": lambda: [b"HTTP/1.1 429 Busy\r\nRetry-After: " + b"9" * 400 + b"\r\nContent-Length: 0\r\n\r\n"],
}
STREAMED = {"endless events", "endless comments", "an endless line"}


class HostileServer:
    """Answers the list of models truly, and everything that is posted with a harm."""

    def __init__(self, harm: Harm, page: Harm | None = None) -> None:
        self._harm, self._page = harm, page or (lambda: whole(MODELS))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.heads: list[bytes] = []
        self._stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"

    def run(self) -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(OSError):
                threading.Thread(target=self._serve, args=(self._listening.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = connection.recv(2**20)
            self.heads.append(head)
            if head.startswith(b"POST"):
                parts = self._harm()
            elif b"/models" in head.splitlines()[0]:
                parts = self._page()
            else:
                parts = whole(b"{}", b"HTTP/1.1 404 None\r\n")
            for part in parts:
                if self._stopped.is_set():
                    return
                connection.sendall(part)

    def stop(self) -> None:
        self._stopped.set()
        self._listening.close()


@contextlib.contextmanager
def harming(harm: Harm, page: Harm | None = None) -> Iterator[HostileServer]:
    server = HostileServer(harm, page)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()
