"""Writes several files so that all of them change or none, except after a crash between two renames.

A destination that is no file is written through, so `/dev/stdout`, `/dev/null` and a pipe that somebody reads stay what
they are: bytes that went into them cannot be taken back, so they come last but for the renames.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from audit.errors import UserError
from audit.text.documents import mistake

HANDLES: Final = ("/dev/std", "/dev/fd/", "/proc/")
"""Beginnings of names of open files: writing such a file again from its start would mix with what the opener writes."""


@contextlib.contextmanager
def staged(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Write temporary files beside their destinations, run the body, then rename them into place.

    If the body raises, the destinations stay unchanged and no temporary file remains.
    A link keeps pointing to its file; the file's content changes and its mode stays.

    Raises:
        UserError: a destination cannot be written.
    """
    pending: dict[Path, Path] = {}
    with contextlib.ExitStack() as opened:
        opened.callback(_remove, pending)
        streams = {path: opened.enter_context(_stream(path)) for path in contents if _is_stream(path)}
        for path, content in contents.items():
            if path not in streams:
                goal = path.resolve()
                pending[goal] = _stage(path, goal, content)
        yield
        for path, handle in streams.items():
            _write(path, handle, contents[path])
        for goal, temporary in pending.items():
            try:
                temporary.replace(goal)
            except OSError as error:
                raise unwritable(goal, error) from error


def write_staged(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none; raises as `staged`."""
    with staged(contents):
        pass


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside the path, which takes its place when the body has ended; raises as `staged`."""
    try:
        with contextlib.ExitStack() as opened:
            home = Path(tempfile.mkdtemp(dir=path.absolute().parent, prefix=f".{path.name[:60]}."))
            opened.callback(shutil.rmtree, home, ignore_errors=True)
            yield home
            home.chmod(0o755)
            home.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def require_new(path: Path) -> None:
    """Make sure that a file can be written where none is, before work begins that ends with it.

    Raises:
        UserError: the file exists, or its folder cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise mistake(str(path), None, "the file exists; choose another name")
    _stage(path, path.resolve(), b"").unlink()


def require_writable(path: Path) -> None:
    """Make sure that a destination can be written, before work begins that ends with it; it stays as it is.

    Raises:
        UserError: a folder, a pipe that nobody reads, or a place that refuses a new file.
    """
    if _is_stream(path):
        with _stream(path):
            return
    if not path.parent.is_dir():
        raise mistake(str(path), None, "its folder does not exist; create it or choose another place")
    _stage(path, path.resolve(), b"").unlink()


def unwritable(path: Path, error: OSError | ValueError) -> UserError:
    """The one-line error of a destination that the system, or Python for a NUL in its name, refuses."""
    reason = getattr(error, "strerror", None) or error
    return mistake(str(path), None, f"cannot be written ({reason}); choose another place")


def _remove(pending: Mapping[Path, Path]) -> None:
    for temporary in pending.values():
        temporary.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """True for a character device or a pipe; raises UserError: a folder, disk, socket, or name of an open file."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
    if stat.S_ISREG(kind):
        if str(path.absolute()).startswith(HANDLES):
            raise mistake(str(path), None, "is another name of an open file; give the file's own name")
        return False
    if stat.S_ISDIR(kind):
        raise mistake(str(path), None, "this is a folder; name a file in it")
    if stat.S_ISCHR(kind) or stat.S_ISFIFO(kind):
        return True
    raise mistake(str(path), None, "is neither a file nor a pipe; choose another place")


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[int]:
    # without O_NONBLOCK a pipe that nobody reads would wait for ever
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        reason = OSError(error.errno, "nobody reads this pipe") if path.is_fifo() else error
        raise unwritable(path, reason) from error
    try:
        os.set_blocking(handle, True)
        yield handle
    finally:
        os.close(handle)


def _write(path: Path, handle: int, content: bytes) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def beside(path: Path, goal: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside `goal`, on disk when the body has ended; `path` is the user's name of the goal.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name[:60]}.")
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream, Path(name)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(goal.stat().st_mode & 0o777 if goal.exists() else 0o644)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def _stage(path: Path, goal: Path, content: bytes) -> Path:
    with beside(path, goal) as (stream, made):
        stream.write(content)
    return made
