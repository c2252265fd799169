"""Access outside the suite by the settings of an arm: variables, hosts, programs, code, files.

A suite is data that may come from somebody else. A backend lists here what its settings name, before anything is
opened; the caller compares the list with what the user allows.
"""

import ipaddress
from dataclasses import dataclass
from enum import StrEnum


class OutsideKind(StrEnum):
    """Kind of access."""

    VARIABLE = "variable"
    """An environment variable is read."""
    HOST = "host"
    """Requests go to this host and port."""
    PROGRAM = "program"
    """A program is started."""
    CODE = "code"
    """An engine loads code that the settings name."""
    FILE = "file"
    """A file or folder outside the suite's folder is read."""
    HUB = "hub"
    """A model comes from the hub, unless it is in the local cache."""


@dataclass(frozen=True, slots=True)
class OutsideAccess:
    """One thing that settings touch. `key` is the setting that names it; `name` of a host is HOST:PORT."""

    kind: OutsideKind
    name: str
    key: str


def is_loopback(host: str) -> bool:
    """True for this machine's own addresses, brackets allowed, and for `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
