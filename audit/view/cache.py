"""Results that stay valid while a server runs, the least recently used one given up first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """At most `most` results by key; several threads may ask at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key, made on the first call; another thread that asks meanwhile waits for it.

        A call that fails keeps nothing: the next one tries again.
        """
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            turn = self._making.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._known:
                    return self._known[key]
            try:
                made = make()
                with self._lock:
                    self._known[key] = made
                    while len(self._known) > self._most:
                        self._known.popitem(last=False)
                return made
            finally:
                with self._lock:
                    self._making.pop(key, None)

    def forget(self, key: Hashable) -> None:
        """Let the next call make the result of a key anew."""
        with self._lock:
            self._known.pop(key, None)
