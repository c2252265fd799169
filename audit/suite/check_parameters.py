"""The parameters that a suite gives its checks: known names, values of the right type and within their ranges."""

from collections.abc import Mapping
from typing import Any

from audit import checks
from audit.checks.base.ranges import as_declared, wrong_parameters
from audit.errors import UserError
from audit.text.documents import Document, Place
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted


def parameters_of(document: Document, place: Place, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of one check, at `place` of the document.

    Raises:
        UserError: one that the check does not have or cannot use, with its line.
    """
    check = checks.load(name)
    for key, value in values.items():
        if key not in check.defaults:
            problem = f"unknown parameter of {name} {quoted(key)}; {suggestion(key, list(check.defaults))}"
            raise document.error((*place, key), problem)
        if not _same_type(value, check.defaults[key]):
            problem = f"{key} is {quoted(value)}; write something like its default, {quoted(check.defaults[key])}"
            raise document.error((*place, key), problem)
    for key, problem in wrong_parameters(values, check.defaults):
        raise document.error((*place, key), f"{name}: {problem}")
    mapping = as_declared(values, check.defaults)
    try:
        check.accept({**check.defaults, **mapping})
    except UserError as error:
        raise document.error(place, str(error)) from error
    return mapping


def _same_type(value: object, default: object) -> bool:
    """Compare JSON types: numbers are one type, booleans are not numbers; a null default accepts anything."""
    if default is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, float))
    if isinstance(default, (list, tuple)):
        return isinstance(value, (list, tuple))
    return isinstance(value, type(default))
