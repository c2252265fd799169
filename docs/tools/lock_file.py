"""The packages of a release, with their digests: as a lock file for pip, and as a CycloneDX bill of materials.

`python -m docs.tools.lock_file lock REPORT FILE` writes the lock from the report of a dry run of pip (`make lock`),
`python -m docs.tools.lock_file bom FILE OUT` the bill from the lock (`make sbom`). A digest is of the file that pip
would install on this machine, so the lock holds for one platform and version of Python.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
HEAD = """\
# Written by `make lock`: what a release was tested with, for CPython 3.11 on Linux x86-64, torch as built for CPUs.
# pip install --require-hashes -r requirements.lock && pip install --no-deps specaudit-*.whl
"""
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) \\\n    --hash=sha256:(?P<sha256>[0-9a-f]{64})$", re.M)


@dataclass(frozen=True, slots=True)
class Pin:
    """A package with the digest of its file."""

    name: str
    version: str
    sha256: str


def pins_of_report(report: dict[str, Any]) -> Iterator[Pin]:
    """The packages that pip would install, without this one."""
    for item in sorted(report["install"], key=lambda item: item["metadata"]["name"].lower()):
        if item["metadata"]["name"] != "specaudit":
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            yield Pin(item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"], digest)


def lock_text(pins: Iterator[Pin]) -> str:
    """The lock file."""
    return HEAD + "".join(f"{pin.name}=={pin.version} \\\n    --hash=sha256:{pin.sha256}\n" for pin in pins)


def pins_of_lock(text: str) -> tuple[Pin, ...]:
    """The packages of a lock file."""
    return tuple(Pin(**found.groupdict()) for found in PIN.finditer(text))


def bom(pins: tuple[Pin, ...]) -> dict[str, Any]:
    """The bill of materials of this version; the same lock gives the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    listed = json.dumps([[pin.name, pin.version, pin.sha256] for pin in pins])
    release = f"pkg:pypi/{name}@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, release + listed)}",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": release, "name": name, "version": version, "purl": release}
        },
        "components": [_component(pin) for pin in pins],
        "dependencies": [{"ref": release, "dependsOn": [_purl(pin) for pin in pins]}],
    }


def _component(pin: Pin) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": pin.sha256}]
    purl = _purl(pin)
    component = {"type": "library", "bom-ref": purl, "name": pin.name, "version": pin.version, "purl": purl}
    return {**component, "hashes": hashes}


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version.replace('+', '%2B')}"


def main() -> None:
    """Write one of the two."""
    _, what, source, goal = sys.argv
    text = Path(source).read_text("utf-8")
    if what == "lock":
        Path(goal).write_text(lock_text(pins_of_report(json.loads(text))), encoding="utf-8")
    else:
        Path(goal).write_text(json.dumps(bom(pins_of_lock(text)), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
