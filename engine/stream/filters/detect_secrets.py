"""Filter `detect_secrets`: keys and passwords by the plugins of detect-secrets, line by line.

The library gives the secret's text and not its place; every occurrence of it in the line is marked. A secret that
spans lines, such as a private key, is known by its first line only.
"""

import contextlib
import importlib
import importlib.metadata
import re
from functools import partial
from typing import Any, Final

from engine.core.errors import InvalidRequest
from engine.stream.interface import FilterSpec, Mark
from engine.stream.segments import LINE, SegmentRules

PACKAGE: Final = "detect-secrets"
PLUGINS: Final = ("AWSKeyDetector", "BasicAuthDetector", "GitHubTokenDetector", "KeywordDetector", "PrivateKeyDetector")


def _marks(plugins: tuple[str, ...], text: str) -> list[Mark]:
    """Every place of every secret, in the order of the text."""
    result = {
        Mark(place.start(), place.end(), secret.type)
        for secret in _secrets(plugins, text)
        for place in re.finditer(re.escape(secret.secret_value or ""), text)
        if secret.secret_value
    }
    return sorted(result, key=lambda mark: (mark.start, mark.end, mark.category))


def _secrets(plugins: tuple[str, ...], line: str) -> list[Any]:
    settings: Any = importlib.import_module("detect_secrets.settings")
    scanning: Any = importlib.import_module("detect_secrets.core.scan")
    chosen = {"plugins_used": [{"name": name} for name in plugins]}
    with settings.transient_settings(chosen), contextlib.suppress(StopIteration):
        return list(scanning.scan_line(line))
    return []


def build(spec: FilterSpec) -> SegmentRules:
    """The plugins of a specification: `plugins`, a list of detect-secrets' names.

    Raises:
        InvalidRequest: unknown rules or plugins, or detect-secrets is not installed.
    """
    rules = spec.given("plugins")
    try:
        plugins: Any = importlib.import_module("detect_secrets.core.plugins.util")
    except ImportError as error:
        raise InvalidRequest("filter detect_secrets needs detect-secrets; install specaudit[secrets]") from error
    known = plugins.get_mapping_from_secret_type_to_class().values()
    names = {item.__name__ for item in known}
    wanted = rules.get("plugins", list(PLUGINS))
    if not isinstance(wanted, list) or not wanted:
        raise InvalidRequest(f"filter detect_secrets: plugins must be a list of names, not {wanted!r}")
    strange = [name for name in wanted if name not in names]
    if strange:
        raise InvalidRequest(f"filter detect_secrets: no plugin {strange[0]!r}; there are: {', '.join(sorted(names))}")
    return SegmentRules(spec.facts(importlib.metadata.version(PACKAGE)), partial(_marks, tuple(wanted)), LINE)
