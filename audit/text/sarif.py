"""SARIF 2.1.0, for code scanning: rules, and results at named places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.text.unsafe import visible

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class SarifResult:
    """One result: its rule, its level (error, warning or note), what it says, and the names that lead to its place."""

    rule: str
    level: str
    text: str
    place: Sequence[str]


def sarif(tool: str, rules: Mapping[str, str], results: Sequence[SarifResult], properties: Mapping[str, Any]) -> str:
    """The document, indented.

    Args:
        tool: name of the program that decided.
        rules: description by id, of every rule that a result names.
        results: what was decided.
        properties: facts about the whole.
    """
    order = {rule: index for index, rule in enumerate(rules)}
    described = [{"id": visible(rule), "shortDescription": {"text": visible(text)}} for rule, text in rules.items()]
    run = {
        "tool": {"driver": {"name": tool, "rules": described}},
        "results": [_result(result, order[result.rule]) for result in results],
        "properties": dict(properties),
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(result: SarifResult, index: int) -> dict[str, Any]:
    place = {"fullyQualifiedName": visible("/".join(part for part in result.place if part))}
    return {
        "ruleId": visible(result.rule),
        "ruleIndex": index,
        "level": result.level,
        "message": {"text": visible(result.text)},
        "locations": [{"logicalLocations": [place]}],
    }
