"""Runs many cases in one test; the failure lists each failed case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Case = Callable[[object], AbstractContextManager[None]]
FAILURES = (Exception, pytest.fail.Exception)


@contextmanager
def every_case() -> Iterator[Case]:
    """Yield `case(name)`, a context that defers a failure to the end; the test fails if no case ran."""
    ran, failures = [], {}

    @contextmanager
    def case(name: object) -> Iterator[None]:
        ran.append(str(name))
        try:
            yield
        except FAILURES as error:
            error.add_note(f"case: {name}")
            failures[f"{name} ({len(ran)})"] = error

    yield case
    assert ran, "no case ran"
    if failures:
        names = ", ".join(name.rpartition(" (")[0] for name in failures)
        raise BaseExceptionGroup(f"{len(failures)} of {len(ran)} cases failed: {names}", list(failures.values()))
