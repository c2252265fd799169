"""The folders of the bundled models, found without importing torch."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from engine.core.errors import ModelError


def bundled_folder(source: str) -> Path:
    """The folder of `bundled:NAME`.

    Raises:
        ModelError: there is no such model.
    """
    name, home = source.partition(":")[2], Path(str(files("engine"))) / "bundled"
    known = sorted(path.parent.name for path in home.glob("*/config.json"))
    if name not in known:
        raise ModelError(
            f"{source}: no such bundled model; there are: {', '.join(known) or 'none in this installation'}"
        )
    return home / name
