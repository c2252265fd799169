"""The distribution of an installed package, with a digest of its files.

vLLM is built and published under several names, so its version alone does not identify it. Runs in the driver.
"""

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def installed(file: str) -> dict[str, Any]:
    """Name and version of the distribution that a module's file belongs to; `record_sha256` is of its list of files.

    The list holds the digest of every installed file, so it changes with any of them.
    """
    here = Path(file).resolve()
    for name in sorted(set(metadata.packages_distributions().get(here.parent.name, ()))):
        result = metadata.distribution(name)
        record = result.read_text("RECORD")
        if Path(str(result.locate_file(f"{here.parent.name}/{here.name}"))).resolve() == here:
            digest = hashlib.sha256(record.encode()).hexdigest() if record else None
            return {"distribution": name, "version": result.version, "record_sha256": digest}
    return {"distribution": None, "version": None, "record_sha256": None}


def plug_ins(group: str) -> list[str]:
    """MODULE.NAME of every installed entry point of a group, in order."""
    return sorted({point.value.replace(":", ".") for point in metadata.entry_points(group=group)})


def versions(names: Sequence[str]) -> dict[str, str | None]:
    """The versions of distributions; None for one that is not installed."""
    mapping: dict[str, str | None] = {}
    for name in names:
        try:
            mapping[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            mapping[name] = None
    return mapping
