"""Writes several files so that all of them change or none, except after a crash between two renames."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from audit.text.documents import mistake


@contextlib.contextmanager
def staged(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Write temporary files beside their destinations, run the body, then rename them into place.

    If the body raises, the destinations stay unchanged and no temporary file remains.
    A link keeps pointing to its file; the file's content changes and its mode stays.

    Raises:
        UserError: a destination cannot be written.
    """
    pending: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            goal = path.resolve()
            pending[goal] = _stage(path, goal, content)
        yield
        for goal, temporary in pending.items():
            temporary.replace(goal)
    finally:
        for temporary in pending.values():
            temporary.unlink(missing_ok=True)


def require_new(path: Path) -> None:
    """Make sure that a file can be written where none is, before work begins that ends with it.

    Raises:
        UserError: the file exists, or its folder cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise mistake(str(path), None, "the file exists; choose another name")
    _stage(path, path.resolve(), b"").unlink()


def _stage(path: Path, goal: Path, content: bytes) -> Path:
    try:
        handle, name = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name[:100]}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(goal.stat().st_mode & 0o777 if goal.exists() else 0o644)
    except OSError as error:
        raise mistake(str(path), None, f"cannot be written ({error.strerror}); choose another place") from error
    return Path(name)
