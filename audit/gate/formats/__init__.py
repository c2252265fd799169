"""Output formats of a decision, one per module. A format is a function from a judgement to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from audit.gate.judgement import GateJudgement
from engine.core.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "text": "audit.gate.formats.text:render",
    "json": "audit.gate.formats.as_json:render",
    "junit": "audit.gate.formats.junit:render",
    "github": "audit.gate.formats.github:render",
    "sarif": "audit.gate.formats.sarif:render",
    "markdown": "audit.gate.formats.markdown:render",
}


def render(name: str, judgement: GateJudgement) -> str:
    """A decision in a registered format, without a newline at the end."""
    text: str = resolve(REGISTRY, name, "format")(judgement)
    return text
