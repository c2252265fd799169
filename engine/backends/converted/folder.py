"""A folder of temporary models."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class WorkFolder:
    """A temporary folder, removed with the last engine that uses it. `name` is a part of its name."""

    def __init__(self, name: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"specaudit-{name}-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def new(self) -> Path:
        """A new folder in it."""
        return Path(tempfile.mkdtemp(prefix="composed-", dir=self.path))
