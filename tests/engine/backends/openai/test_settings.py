"""What a suite's engine mapping may say."""

import dataclasses

import jsonschema
import pytest

import schemas
from engine.backends.openai.settings import DIALECTS, OWNED, OpenAISettings, settings_of
from engine.core.errors import InvalidRequest

URL = "http://127.0.0.1:8000/v1"


def test_the_schema_has_the_settings_with_their_defaults():
    properties = schemas.load("engine-openai")["properties"]
    fields = {each.name: each for each in dataclasses.fields(OpenAISettings)}
    assert set(properties) == set(fields)
    made = settings_of({"url": URL})
    for name, entry in properties.items():
        if "default" in entry:
            assert getattr(made, name) == entry["default"], name
        assert len(entry["description"]) > 20


def test_the_schema_names_the_kinds_of_server():
    assert schemas.load("engine-openai")["properties"]["server"]["enum"] == list(DIALECTS)


def test_a_key_that_there_is_not_is_refused_by_the_schema():
    with pytest.raises(jsonschema.ValidationError, match="api_key"):
        jsonschema.validate({"url": URL, "api_key": "secret"}, schemas.load("engine-openai"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "url is missing"),
        ({"url": "127.0.0.1:8000"}, "url is no address"),
        ({"url": "ftp://a/v1"}, "url is no address"),
        ({"url": "http://a:b/v1"}, "url is no address"),
        ({"url": "http://me:word@a/v1"}, "url holds a user or a password"),
        ({"url": "http://a/v1?key=1"}, "url has a query"),
        ({"url": URL, "proxy": "http://me:word@a"}, "proxy holds a user or a password"),
        ({"url": URL, "server": "vllm", "api": "generate"}, "api generate is SGLang's own route; set server to sglang"),
        ({"url": URL, "body": {"sampling_params": {}}}, "body may not set sampling_params"),
        ({"url": URL, "body": {"seed": 1}}, "body may not set seed"),
        ({"url": URL, "body": {"x": "y" * 2**21}}, "body has more than a megabyte"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_key(given, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        settings_of(given)
    assert "word@" not in str(caught.value)


def test_addresses_are_put_together():
    made = settings_of({"url": URL + "/"})
    assert (made.url, made.root, made.metrics) == (URL, "http://127.0.0.1:8000", ("http://127.0.0.1:8000/metrics",))
    assert settings_of({"url": URL, "metrics_url": "http://b/m"}).metrics == ("http://b/m",)


def test_nothing_that_a_dialect_sends_can_be_set_from_the_side():
    assert all(set(dialect.extras.values()) <= OWNED for dialect in DIALECTS.values())
