"""Optional packages: one clear line where an extra of this distribution is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from audit.errors import UserError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a failed import in the body into the line that names the extra.

    Raises:
        UserError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise UserError(f"{package} is not installed; install it: pip install 'specaudit[{extra}]'") from error
