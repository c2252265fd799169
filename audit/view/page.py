"""What pages are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment

from audit.errors import UserError
from audit.store import Store
from audit.store.browse.browser import Browser
from audit.store.browse.request_list import RequestPlaces
from audit.store.browse.trends import ArmSums
from audit.view.kept import Kept


class LostStore(UserError):
    """The store is not there any more, or has another revision than at the start."""


@dataclass(frozen=True, slots=True)
class ViewPage:
    """A template with what it is given."""

    template: str
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ViewState:
    """The store's address, the templates, and counts of runs that have ended, which do not change."""

    store: str
    templates: Environment
    sums: Kept[tuple[ArmSums, ...]] = field(default_factory=lambda: Kept(4096))
    places: Kept[RequestPlaces] = field(default_factory=lambda: Kept(64))

    @contextmanager
    def browser(self) -> Iterator[Browser]:
        """The store's lists.

        Raises:
            LostStore: the store cannot be opened.
        """
        try:
            opened = Browser.open(self.store)
        except UserError as error:
            raise LostStore(str(error)) from error
        with opened:
            yield opened

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store, read-only.

        Raises:
            LostStore: the store cannot be opened.
        """
        try:
            store = Store.open(self.store, create=False, read_only=True)
        except UserError as error:
            raise LostStore(str(error)) from error
        with store:
            yield store
