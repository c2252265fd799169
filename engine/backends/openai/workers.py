"""Several workers for one list of work, in its order; results arrive as they are ready.

The threads do not keep the process alive: a request in flight is abandoned when the user stops the run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    result: Result | None
    error: BaseException | None = None


def results(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Every item's result; an exception of the work is raised here, and the other results are lost."""
    todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Done[Result]] = queue.SimpleQueue()
    for item in items:
        todo.put(item)

    def run() -> None:
        while True:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put(_Done(work(item)))
            except BaseException as error:
                done.put(_Done(None, error))
                return

    for _ in range(min(workers, len(items))):
        threading.Thread(target=run, daemon=True).start()
    for _ in items:
        found = done.get()
        if found.error is not None:
            raise found.error
        assert found.result is not None
        yield found.result
