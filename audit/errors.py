"""The harness's exceptions, one per exit code of the command line.

A user's mistake gives one line on stderr and exit code 2; evidence that cannot
decide gives exit code 3. Anything else is a bug and keeps its traceback.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

ENGINE: Final = ("torch", "transformers", "safetensors", "tokenizers", "llvmlite")
"""Packages of the extra `engine`; commands about records and endpoints need none of them."""


class UserError(Exception):
    """Bad input; the message names the file, the place and the fix. Exit code 2."""


class CannotDecide(Exception):
    """Evidence missing, stale or unreadable. Exit code 3."""


class UnreadableRecord(CannotDecide):
    """A record of an arm that cannot be read; the checks of other arms can decide."""


@contextmanager
def needs(extra: str, packages: Collection[str] = ()) -> Iterator[None]:
    """Turn a failed import in the body into the line that names the extra; `packages` are all that may be missing.

    Raises:
        UserError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        if packages and not (isinstance(error, ModuleNotFoundError) and package in packages):
            raise
        raise UserError(f"{package} is not installed; install it: pip install 'specaudit[{extra}]'") from error
