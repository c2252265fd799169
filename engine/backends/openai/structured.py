"""Grammars of answers, in the words of each kind of server.

`response_format` with a JSON Schema is OpenAI's own, on the chat route; everything else is a server's extension.
What a server cannot be asked for is refused, never dropped. The server's library compiles the grammar: one that it does
not support shows as a refused request.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.backends.openai.settings import DIALECTS, Api, OpenAISettings, settings_of
from engine.core.errors import InvalidRequest
from engine.core.structured import ConstraintKind, ConstraintSpec

NAME: Final = "answer"
"""The name that `json_schema` needs."""
Keys = Mapping[str, Any]
"""Keys of a request's body."""
Form = Callable[[ConstraintSpec], Keys]


def _json_schema(spec: ConstraintSpec) -> Keys:
    schema = {"name": NAME, "schema": spec.value, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _structured_outputs(spec: ConstraintSpec) -> Keys:
    value = spec.value if spec.kind in (ConstraintKind.JSON, ConstraintKind.CHOICE) else spec.source
    return {"structured_outputs": {spec.kind.value: value}}


EXTENSIONS: Final[Mapping[str, Mapping[ConstraintKind, Form]]] = {
    "vllm": {kind: _structured_outputs for kind in ConstraintKind if kind is not ConstraintKind.CASE},
    "sglang": {ConstraintKind.REGEX: lambda spec: {"regex": spec.value}},
    "tensorrt-llm": {
        ConstraintKind.JSON: lambda spec: {"response_format": {"type": "json", "schema": spec.value}},
        ConstraintKind.REGEX: lambda spec: {"response_format": {"type": "regex", "regex": spec.value}},
    },
}
"""Of each kind of server, on both routes. Their grammars other than vLLM's are no Lark."""


def forms_of(server: str, api: Api) -> Mapping[ConstraintKind, Form]:
    """The kinds of grammar that a server can be asked for on a route."""
    forms = dict(EXTENSIONS.get(server, {}))
    if api is Api.GENERATE:
        forms[ConstraintKind.JSON] = lambda spec: {"json_schema": json.dumps(spec.value)}
    if api is Api.CHAT and server != "tensorrt-llm":
        forms[ConstraintKind.JSON] = _json_schema
    return forms


def keys_of(settings: OpenAISettings, spec: ConstraintSpec | None) -> Keys:
    """The keys of a request's body that ask for a grammar; empty without one.

    Raises:
        InvalidRequest: the server cannot be asked for it; the message names the kinds and servers that it can be.
    """
    if spec is None:
        return {}
    form = forms_of(settings.server, settings.api).get(spec.kind)
    if form is None:
        raise InvalidRequest(_refusal(settings, spec.kind))
    keys = form(spec)
    twice = sorted(set(keys) & set(settings.body)) or (["response_format"] if settings.response_format else [])
    if twice:
        raise InvalidRequest(f"structured and engine.{twice[0]} both ask for a form of the answer; remove one")
    return keys


def _refusal(settings: OpenAISettings, kind: ConstraintKind) -> str:
    known = ", ".join(forms_of(settings.server, settings.api)) or "none"
    having = [server for server in DIALECTS if kind in forms_of(server, settings.api)]
    mend = f"or set engine.server to a kind that has it: {', '.join(having)}" if having else "or remove structured"
    where = f"a server of kind {settings.server} has no structured {kind} on the {settings.api} route"
    return f"{where} (it has: {known}); write another kind, {mend}"


def problem_of(engine: Mapping[str, Any], spec: ConstraintSpec) -> str | None:
    """Why an arm with these engine settings cannot ask for a grammar; None if it can."""
    try:
        settings = settings_of(engine)
    except InvalidRequest:
        # reported by itself when the arm is opened
        return None
    try:
        keys_of(settings, spec)
    except InvalidRequest as error:
        return str(error)
    return None
