from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import schemas
from tests.audit.invoke import invoke

ENGINES = {
    "engine-llama_cpp",
    "engine-mlx_lm",
    "engine-onnxruntime_genai",
    "engine-openai",
    "engine-openvino_genai",
    "engine-transformers",
    "engine-vllm",
}
KINDS = "attachment controls disclosure gate-facts plan policy prompt results review speculation suite waiver"
EXPECTED = {*KINDS.split()} | ENGINES | {"config", "serving-profile"}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in nodes(schema):
        found = node.get("properties")
        if isinstance(found, dict):
            yield from ((name, entry) for name, entry in found.items() if isinstance(entry, dict))


def resolve(schema: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][entry["$ref"].rsplit("/", 1)[1]] if "$ref" in entry else entry


def test_all_are_there():
    assert set(schemas.names()) == EXPECTED


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        schemas.load("../pyproject")


VERSIONS = {"results": 3}
"""Formats that changed since their first version."""


@pytest.mark.parametrize("name", schemas.names())
class TestEach:
    def test_is_a_valid_schema(self, name):
        schema = schemas.load(name)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        Draft202012Validator.check_schema(schema)

    def test_describes_every_property(self, name):
        schema = schemas.load(name)
        bare = [key for key, entry in properties(schema) if not {**resolve(schema, entry), **entry}.get("description")]
        assert bare == []

    def test_every_reference_resolves(self, name):
        schema = schemas.load(name)
        references = {node["$ref"] for node in nodes(schema) if isinstance(node.get("$ref"), str)}
        assert references <= {f"#/$defs/{key}" for key in schema.get("$defs", {})}

    def test_refuses_unknown_keys_at_the_top(self, name):
        schema = schemas.load(name)
        assert schema["additionalProperties"] is False
        errors = [error.validator for error in Draft202012Validator(schema).iter_errors({"surely unknown": 1})]
        assert "additionalProperties" in errors

    def test_is_printed_by_the_command(self, name):
        result = invoke("schema", name)
        assert result.exit_code == 0
        assert f"specaudit.dev/schemas/{name.removesuffix('-1')}-{VERSIONS.get(name, 1)}.json" in result.stdout


def test_the_command_lists_the_names():
    result = invoke("schema")
    assert result.stdout.split() == sorted(EXPECTED)


def test_an_unknown_name_is_a_usage_error():
    assert invoke("schema", "nonsense").exit_code == 2
