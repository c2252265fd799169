"""Access of a suite outside itself, and the refusal of all that the user did not allow."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.suite.allowances import Allowances, config_file
from audit.suite.filters import MODEL, PACKAGED
from audit.suite.spec import Suite
from audit.text.documents import packaged_file
from engine.backends import outside_access
from engine.backends.access import OutsideAccess, OutsideKind
from engine.backends.catalogue import SourceKind
from engine.core.errors import InvalidRequest

OPTIONS: Final = {
    OutsideKind.VARIABLE: "--allow-env",
    OutsideKind.HOST: "--allow-host",
    OutsideKind.PROGRAM: "--allow-engine-python",
    OutsideKind.CODE: "--allow-engine-code",
}
"""The option that allows an access."""
WORDS: Final = {
    OutsideKind.VARIABLE: "read the variable",
    OutsideKind.HOST: "send requests to",
    OutsideKind.PROGRAM: "start the program",
    OutsideKind.CODE: "have its engine load",
}


def outside_of(suite: Suite) -> tuple[OutsideAccess, ...]:
    """Everything that the suite would touch, once each, in the order of its keys.

    Raises:
        UserError: a setting that cannot be read, such as an address without a host.
    """
    return _once((*_settings(suite), *_files(suite)))


def _once(accesses: tuple[OutsideAccess, ...]) -> tuple[OutsideAccess, ...]:
    first: dict[tuple[OutsideKind, str], OutsideAccess] = {}
    for access in accesses:
        first.setdefault((access.kind, access.name), access)
    return tuple(first.values())


def require_allowed(suite: Suite, allowed: Allowances) -> None:
    """Refuse a suite that would touch more than the user allows; the message names the options that allow the rest.

    Raises:
        UserError: something is not allowed.
    """
    # files and models of the hub need no allowance
    refused = [item for item in _once(tuple(_settings(suite))) if not allowed.allows(item)]
    if not refused:
        return
    acts = " and ".join(f"{WORDS[item.kind]} {item.name} ({item.key})" for item in refused)
    options = " ".join(f"{OPTIONS[item.kind]} {shlex.quote(item.name)}" for item in refused)
    raise UserError(f"{suite.path}: it would {acts}; if it may, add {options}, or allow it in {config_file()}")


def _settings(suite: Suite) -> Iterator[OutsideAccess]:
    """Access by the engine's settings: the suite's, for the baselines, and each arm's."""
    yield from _accesses(suite, suite.engine, {}, "")
    for arm in suite.arms:
        yield from _accesses(suite, {**suite.engine, **arm.engine}, arm.proposer.options, f" of arm {arm.name}")


def _accesses(
    suite: Suite, engine: Mapping[str, Any], options: Mapping[str, Any], where: str
) -> Iterator[OutsideAccess]:
    try:
        for access in outside_access(suite.backend, engine, options):
            # engines take paths from the working folder, so the whole path is what matters
            name = str(Path(access.name).absolute()) if access.kind is OutsideKind.FILE else access.name
            yield OutsideAccess(access.kind, name, access.key + where)
    except InvalidRequest as error:
        raise UserError(f"{suite.path}: {error}") from error


def _files(suite: Suite) -> Iterator[OutsideAccess]:
    """Files and folders that are not in the suite's folder, and models of the hub."""
    home = Path(suite.path).parent
    for key, name in _named(suite):
        if name.startswith(SourceKind.HUB):
            yield OutsideAccess(OutsideKind.HUB, name, key)
        elif not name.startswith((PACKAGED, SourceKind.BUNDLED, SourceKind.SCRIPTED, SourceKind.SERVED)):
            path = (home / Path(name).expanduser()).resolve()
            if not path.is_relative_to(home.resolve()) and not _packaged(path):
                yield OutsideAccess(OutsideKind.FILE, str(path), key)


def _named(suite: Suite) -> Iterator[tuple[str, str]]:
    """Keys of the suite's document with the path or source that each holds."""
    document = suite.document
    for name, entry in document["models"].items():
        yield f"models.{name}", entry if isinstance(entry, str) else entry["source"]
    for index, entry in enumerate(document["workloads"]):
        source = entry.get("source")
        yield f"workloads[{index}].{'source' if source else 'prompts'}", source["file"] if source else entry["prompts"]
    own = ((f"arms[{index}].filters", arm.get("filters", ())) for index, arm in enumerate(document["arms"]))
    for place, entries in (("filters", document.get("filters", ())), *own):
        for index, entry in enumerate(entries):
            if "rules" in entry:
                yield f"{place}[{index}].rules", entry["rules"]
    for arm in suite.arms:
        for other in arm.stream.filters if arm.stream else ():
            if isinstance(other.document.get(MODEL), str):
                yield f"the filter {other.kind} of arm {arm.name}", other.document[MODEL]


def _packaged(path: Path) -> bool:
    """True for files of this package, which packaged suites name by a path."""
    inside = packaged_file("prompts")
    return inside is not None and path.is_relative_to(inside.parent.resolve())
