"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from audit.errors import UserError
from audit.store.base.connection import default_url
from audit.terminal.tables import WIDE

F = TypeVar("F", bound=Callable[..., Any])


def store_option(function: F) -> F:
    """`--store URL`, from `AUDIT_STORE` or the user's data folder by default."""
    return click.option(
        "--store",
        metavar="URL",
        envvar="AUDIT_STORE",
        show_envvar=True,
        default=default_url,
        show_default="audit.db in the user's data folder",
        help="Provenance store: a path, sqlite:///FILE, or postgresql://HOST/DATABASE.",
    )(function)


def policy_digest(text: str | None) -> str | None:
    """The hex digest that `--policy-digest` gives.

    Raises:
        UserError: another text.
    """
    # imported here: most commands that have options of this file read no document
    from audit.gate.subjects import DIGEST
    from audit.text.documents import quoted

    if text is not None and not DIGEST.fullmatch(text):
        raise UserError(f"--policy-digest {quoted(text)}: not a digest; write sha256: and 64 lower-case hex digits")
    return text and text.removeprefix("sha256:")


def json_option(function: F) -> F:
    """`--json`: machine-readable output on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(function)


def wide_option(function: F) -> F:
    """`--wide`: one line per table row, even on a narrow terminal."""
    return click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_keep_wide,
        help="Print one line per table row. By default, long texts wrap on a terminal or if COLUMNS is set.",
    )(function)


def _keep_wide(context: click.Context, _parameter: click.Parameter, wide: bool) -> None:
    context.meta[WIDE] = wide
