"""Connections with a deadline and a number of bytes: both hold for everything that a server sends.

The library's timeout covers single reads, so headers that drip, interim responses without end, and endless trailers
would outlast it. A lane is a client of one connection, used for one attempt at a time.
"""

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore2
import httpx2


class Allotment:
    """The time and the bytes that the present attempt may still take."""

    def __init__(self) -> None:
        self._until = 0.0
        self._left = 0
        self.exceeded = False
        """True if the server sent more bytes than it may."""

    def begin(self, seconds: float, count: int) -> None:
        """Start an attempt."""
        self._until, self._left, self.exceeded = time.monotonic() + seconds, count, False

    def within(self, timeout: float | None) -> float:
        """The part of a read's own timeout that is left. Raises httpcore2.ReadTimeout: nothing is."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("the answer was not whole in time")
        return left if timeout is None else min(left, timeout)

    def take(self, count: int) -> None:
        """Count bytes. Raises httpcore2.ReadError: they are too many."""
        self._left -= count
        if self._left < 0:
            self.exceeded = True
            raise httpcore2.ReadError("too many bytes")


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, allotment: Allotment) -> None:
        self._inner = inner
        self._allotment = allotment

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, self._allotment.within(timeout))
        self._allotment.take(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._allotment.within(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        secure = self._inner.start_tls(ssl_context, server_hostname, self._allotment.within(timeout))
        return _Stream(secure, self._allotment)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Network(httpcore2.NetworkBackend):
    def __init__(self, allotment: Allotment) -> None:
        self._inner = httpcore2.SyncBackend()
        self._allotment = allotment

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        within = self._allotment.within(timeout)
        return _Stream(self._inner.connect_tcp(host, port, within, local_address, socket_options), self._allotment)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Transport(httpx2.HTTPTransport):
    """The library's transport over one bounded connection; it ignores the environment."""

    def __init__(self, allotment: Allotment, proxy: str | None, tls: ssl.SSLContext) -> None:
        network = _Network(allotment)
        self._pool = (
            httpcore2.ConnectionPool(ssl_context=tls, max_connections=1, network_backend=network)
            if proxy is None
            else httpcore2.HTTPProxy(proxy, ssl_context=tls, max_connections=1, network_backend=network)
        )


class Lane:
    """One connection at a time to one server."""

    def __init__(self, proxy: str | None, tls: ssl.SSLContext) -> None:
        self.allotment = Allotment()
        self.client = httpx2.Client(transport=_Transport(self.allotment, proxy, tls), trust_env=False)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
