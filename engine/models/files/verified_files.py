"""Reads a model from the files whose digests are known, and from no others that took their names meanwhile.

Readers get a folder of links to the open files. Where the system has no such links (other than Linux) they read by
name, and the states before and after must agree.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFile, ModelFolder, changed, state_of

OPEN_FILES: Final = Path("/proc/self/fd")
BESIDE: Final = ("response_template.json",)
"""Files without a digest that readers of a folder look for."""


@contextmanager
def pinned(folder: ModelFolder) -> Iterator[ModelFolder]:
    """The folder as it was digested, for as long as the body runs.

    Raises:
        ModelError: a file has changed since, or changed while the body ran.
    """
    with ExitStack() as stack:
        files = [_opened(folder, file, stack) for file in folder.files]
        if OPEN_FILES.is_dir():
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specaudit-model-")))
            _link(folder, files, home)
            yield replace(folder, path=home, origin=folder.path)
        else:
            yield folder
        for file, handle in files:
            _require_same(folder, file, handle)


def _opened(folder: ModelFolder, file: ModelFile, stack: ExitStack) -> tuple[ModelFile, int]:
    try:
        handle = os.open(folder.path / file.name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelError(f"{folder.name(file.name)}: not readable ({error.strerror}); restore the file") from error
    stack.callback(os.close, handle)
    _require_same(folder, file, handle)
    return file, handle


def _require_same(folder: ModelFolder, file: ModelFile, handle: int) -> None:
    if file.state is not None and state_of(handle) != file.state:
        raise changed(folder.name(file.name))


def _link(folder: ModelFolder, files: list[tuple[ModelFile, int]], home: Path) -> None:
    for file, handle in files:
        place = home / file.name
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(OPEN_FILES / str(handle))
    for name in BESIDE:
        if (folder.path / name).is_file():
            (home / name).symlink_to(folder.path.absolute() / name)
