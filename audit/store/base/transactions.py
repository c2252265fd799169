"""Methods that are functions of a session, each call in one transaction of their object."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.orm import Session

P = ParamSpec("P")
T = TypeVar("T")

Transaction = Callable[[Callable[[Session], Any]], Any]
"""Runs a function of a session in one transaction; what the function returns."""


def reads(work: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The function as a method of an object whose `read` is a `Transaction`."""

    @wraps(work)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self.read(lambda session: work(session, *args, **kwargs))
        return result

    return method


def writes(work: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The function as a method of an object whose `write` is a `Transaction`."""

    @wraps(work)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self.write(lambda session: work(session, *args, **kwargs))
        return result

    return method
