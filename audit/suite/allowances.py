"""Allowed access outside a suite: the options of the command and the user's own configuration.

Both add up, and neither takes anything away. Nothing in a suite, in its folder or in the working folder can allow
anything, so a suite from somebody else has what its reader grants it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import schemas
from audit.errors import UserError
from audit.text.documents import MAX_YAML_BYTES, decode_text, mistake, read_bytes
from audit.text.schema_errors import first_problem
from audit.text.unsafe import quoted
from engine.backends.access import OutsideAccess, OutsideKind, is_loopback

HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Allowances:
    """The user's consent.

    env: environment variables.
    hosts: HOST or HOST:PORT; HOST allows every port.
    engine_python: interpreters of engines.
    engine_code: classes that engines may load, `trust_remote_code`, or `compilation_config.KEY`.
    """

    env: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    engine_python: tuple[str, ...] = ()
    engine_code: tuple[str, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        return Allowances(
            self.env + other.env,
            self.hosts + other.hosts,
            self.engine_python + other.engine_python,
            self.engine_code + other.engine_code,
        )

    def allows(self, access: OutsideAccess) -> bool:
        """True if the suite may have this access.

        This machine's own addresses need no allowance, because local servers are what most suites test and a request
        to one leaves nothing on another machine; neither does the interpreter that runs this. Files and models are
        listed by `audit validate` and need none: a suite reads them into the user's own store.
        """
        if access.kind is OutsideKind.VARIABLE:
            return access.name in self.env
        if access.kind is OutsideKind.HOST:
            host = access.name.rpartition(":")[0]
            return is_loopback(host) or not {access.name, host}.isdisjoint(other.lower() for other in self.hosts)
        if access.kind is OutsideKind.PROGRAM:
            return _program(access.name) in {sys.executable, *map(_program, self.engine_python)}
        if access.kind is OutsideKind.CODE:
            return access.name in self.engine_code
        return True


NOTHING: Final = Allowances()


def require_host(text: str) -> str:
    """The text, if it is HOST or HOST:PORT. Raises UserError: another text, such as a whole address."""
    if not HOST.fullmatch(text):
        raise UserError(f"--allow-host {quoted(text)}: not a host; write HOST or HOST:PORT, without http:// and path")
    return text


def config_file() -> Path:
    """The user's configuration, existing or not."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "specaudit" / "config.toml"


def configured() -> Allowances:
    """Allowances in the user's configuration; none without one.

    Raises:
        UserError: it cannot be read, or has a mistake.
    """
    path = config_file()
    if not path.exists():
        return Allowances()
    allow = _read(path).get("allow", {})
    return Allowances(**{key: tuple(values) for key, values in allow.items()})


def _read(path: Path) -> dict[str, Any]:
    # imported with the first configuration
    from jsonschema import Draft202012Validator

    try:
        data = tomllib.loads(decode_text(str(path), read_bytes(path, MAX_YAML_BYTES)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise mistake(str(path), None, f"bad TOML, {error}; fix the syntax") from error
    problem = first_problem(data, Draft202012Validator(schemas.load("config")))
    if problem is not None:
        raise mistake(str(path), None, problem)
    return data


def _program(name: str) -> str:
    """The file that would be started. Links are kept: the interpreters of two environments are links to one file."""
    path = os.path.expanduser(name)
    return os.path.abspath(shutil.which(path) or path)
