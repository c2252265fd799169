"""Small requests that each answer one question about an endpoint.

A parameter counts as kept if it changes what it must change: one that is only accepted may be ignored.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from engine.backends.openai.client import Endpoint
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.forms.native import reader_of
from engine.backends.openai.request import native_logprobs
from engine.backends.openai.response import Collector, Completion, read
from engine.backends.openai.settings import NATIVE, ROUTES, Api, OpenAISettings
from engine.backends.openai.surface import fields_of

TEXT: Final = "Count from one to ten:"
SHORT: Final = 16
LONG: Final = 64
RIVALS: Final = 2
TIE: Final = 0.01
"""Nats by which rounding may put another token first."""
HOT: Final = 2.0
"""The highest temperature that every server takes: draws differ from the likeliest tokens."""
ONE_TOKEN: Final[Mapping[str, Any]] = {"top_p": 1e-6, "top_k": 1, "min_p": 0.9999}
"""Values that leave the likeliest token alone, so a kept one gives the answer of temperature 0."""
SCHEMA: Final = {
    "type": "object",
    "properties": {"n": {"enum": [1, 2]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOL: Final = {"type": "function", "function": {"name": "look", "description": "Look it up.", "parameters": SCHEMA}}


class TrialOutcome(StrEnum):
    """Outcome of a trial."""

    YES = "yes"
    NO = "no"
    IGNORED = "ignored"
    REFUSED = "refused"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class ProbedFeature:
    """One answered question."""

    name: str
    outcome: TrialOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Prober:
    """Sends single requests to one endpoint."""

    settings: OpenAISettings
    endpoint: Endpoint
    model: str

    def ask(self, api: Api, tokens: int = SHORT, **keys: Any) -> Completion:
        """The answer to one request. Raises AttemptError: none came."""
        return read(reader_of(self.settings)(self.endpoint.ask(ROUTES[api], self._body(api, tokens, keys)).document))

    def ask_streamed(self, api: Api, **keys: Any) -> Completion:
        """The answer to the same request in parts; raises as `ask`."""
        collector, reader = Collector(), reader_of(self.settings)
        for part in self.endpoint.stream(ROUTES[api], {**self._body(api, SHORT, keys), "stream": True}):
            collector.add(reader(part.document))
        return collector.answer()

    def fingerprint(self) -> str:
        """The fingerprint in an answer; empty if there is none."""
        for api in self.settings.routes:
            try:
                # every kind of server knows this name of the length
                answer = self.ask(api, 1, max_completion_tokens=None, max_tokens=1)
            except AttemptError:
                continue
            return str(answer.meta.get("system_fingerprint") or "")
        return ""

    def _body(self, api: Api, tokens: int, keys: Mapping[str, Any]) -> dict[str, Any]:
        if api is Api.GENERATE:
            return self._native(tokens, keys)
        prompt = {"messages": [{"role": "user", "content": TEXT}]} if api is Api.CHAT else {"prompt": TEXT}
        length = self.settings.dialect.max_tokens if api is Api.CHAT else "max_tokens"
        told = {"model": self.model, **prompt, "temperature": 0, length: tokens, **self.settings.body, **keys}
        return {key: value for key, value in told.items() if value is not None}

    def _native(self, tokens: int, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The request in SGLang's own words; token ids and counts come unasked."""
        asked = {"input_ids": keys["prompt"]} if "prompt" in keys else {"text": TEXT}
        kept = {key: keys[key] for key in ("temperature", *ONE_TOKEN) if key in keys}
        seed = {NATIVE.seed: keys["seed"]} if "seed" in keys else {}
        form = keys.get("response_format")
        schema = {} if form is None else {"json_schema": json.dumps(form["json_schema"]["schema"])}
        sampling = {"temperature": 0, NATIVE.max_tokens: tokens, **kept, **seed, **schema}
        scores = native_logprobs(self.settings) if "logprobs" in keys else {}
        return {**asked, "sampling_params": sampling, **scores, **self.settings.body}


TrialResult = tuple[TrialOutcome, str]
"""With the detail, which may be empty."""
Trial = Callable[[Prober, Api], TrialResult]


def tried(prober: Prober) -> tuple[ProbedFeature, ...]:
    """Every trial, on the first route that answers; only the routes if none does."""
    named = prober.settings.routes
    routes = [_guarded(api.value, partial(_route, prober, api)) for api in named]
    api = next((api for api, result in zip(named, routes, strict=True) if result.outcome is TrialOutcome.YES), None)
    if api is None:
        return tuple(routes)
    return (*routes, *[_guarded(name, partial(trial, prober, api)) for name, trial in TRIALS.items()])


def _guarded(name: str, trial: Callable[[], TrialResult]) -> ProbedFeature:
    try:
        return ProbedFeature(name, *trial())
    except AttemptError as error:
        refused = error.status is not None and 400 <= error.status < 500
        return ProbedFeature(name, TrialOutcome.REFUSED if refused else TrialOutcome.UNCLEAR, error.message)


def _route(prober: Prober, api: Api) -> TrialResult:
    answer = prober.ask(api)
    return TrialOutcome.YES, f"ended with {answer.finish}"


def _stream(prober: Prober, api: Api) -> TrialResult:
    same = prober.ask(api).text == prober.ask_streamed(api).text
    return TrialOutcome.YES if same else TrialOutcome.UNCLEAR, "" if same else "the text differs"


def _one_name(prober: Prober, api: Api) -> TrialResult:
    answers = [prober.ask(api), prober.ask(api, LONG), prober.ask_streamed(api)]
    names = {(answer.meta.get("model"), answer.meta.get("system_fingerprint")) for answer in answers}
    # SGLang's own route names the version of the weights alone
    model = prober.model if api is Api.GENERATE else answers[0].meta.get("model")
    if len(names) > 1 or model != prober.model:
        shown = "several names" if len(names) > 1 else f"answers are by {str(model)[:60]!r}"
        return TrialOutcome.NO, shown
    return TrialOutcome.YES, ""


def _own_lists(prober: Prober, api: Api) -> TrialResult:
    pieces = _scored(prober, api).pieces or ()
    flaw = next((piece.flaw for piece in pieces if piece.flaw), "")
    behind = max((piece.behind for piece in pieces if piece.rivals), default=math.nan)
    if not flaw and behind > TIE:
        flaw = f"a token of the list is likelier by {behind:.2g} nats than the one at temperature 0"
    decided = TrialOutcome.UNCLEAR if math.isnan(behind) else TrialOutcome.YES
    return TrialOutcome.NO if flaw else decided, flaw


def _fields_in_stream(prober: Prober, api: Api) -> TrialResult:
    keys = {**_scores(prober, api), **({"return_token_ids": True} if prober.settings.dialect.token_ids else {})}
    whole, parts = prober.ask(api, **keys), prober.ask_streamed(api, stream_options={"include_usage": True}, **keys)
    lost = sorted(set(fields_of(whole, RIVALS)) - set(fields_of(parts, RIVALS)))
    return TrialOutcome.NO if lost else TrialOutcome.YES, ", ".join(lost)


def _repeats(prober: Prober, api: Api) -> TrialResult:
    same = prober.ask(api, LONG).text == prober.ask(api, LONG).text
    return TrialOutcome.YES if same else TrialOutcome.NO, "temperature 0, asked twice"


def _logprobs(prober: Prober, api: Api) -> TrialResult:
    pieces = _scored(prober, api).pieces
    if pieces is None:
        return TrialOutcome.IGNORED, ""
    rivals = sum(piece.lead == piece.lead for piece in pieces)
    return TrialOutcome.YES, f"{len(pieces)} tokens, {rivals} with a rival"


def _scored(prober: Prober, api: Api) -> Completion:
    return prober.ask(api, **_scores(prober, api))


def _scores(prober: Prober, api: Api) -> dict[str, Any]:
    flagged = api is Api.CHAT or prober.settings.dialect.flagged
    return {"logprobs": True, "top_logprobs": RIVALS} if flagged else {"logprobs": RIVALS}


def _ids_in_logprobs(prober: Prober, api: Api) -> TrialResult:
    pieces = _scored(prober, api).pieces
    named = bool(pieces) and all(piece.id is not None for piece in pieces or ())
    return TrialOutcome.YES if named else TrialOutcome.NO, ""


def _token_ids(prober: Prober, api: Api) -> TrialResult:
    ids = prober.ask(api, return_token_ids=True).token_ids
    return TrialOutcome.IGNORED if ids is None else TrialOutcome.YES, ""


def _prompt_ids(prober: Prober, api: Api) -> TrialResult:
    prober.ask(Api.COMPLETIONS if api is Api.CHAT else api, prompt=[1, 2, 3])
    return TrialOutcome.YES, ""


def _seed(prober: Prober, api: Api) -> TrialResult:
    first, again, other = (prober.ask(api, temperature=HOT, seed=seed).text for seed in (1, 1, 2))
    if first != again:
        return TrialOutcome.IGNORED, "one seed, two answers"
    outcome = TrialOutcome.UNCLEAR if first == other else TrialOutcome.YES
    return outcome, "two seeds, one answer" if first == other else ""


def _cut(name: str, prober: Prober, api: Api) -> TrialResult:
    best = prober.ask(api).text
    free = {prober.ask(api, temperature=HOT, seed=seed).text for seed in (1, 2)}
    cut = {prober.ask(api, temperature=HOT, seed=seed, **{name: ONE_TOKEN[name]}).text for seed in (1, 2)}
    if free == {best}:
        return TrialOutcome.UNCLEAR, "draws are the likeliest tokens anyway"
    return TrialOutcome.YES if cut == {best} else TrialOutcome.IGNORED, ""


def _structured(prober: Prober, api: Api) -> TrialResult:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    answer = prober.ask(api, LONG, response_format=form)
    try:
        document = json.loads(answer.content)
    except ValueError:
        outcome = TrialOutcome.UNCLEAR if answer.finish == "length" else TrialOutcome.IGNORED
        return outcome, "no JSON" + (", cut by its length" if outcome == "unclear" else "")
    return TrialOutcome.YES if document in ({"n": 1}, {"n": 2}) else TrialOutcome.IGNORED, ""


def _tools(prober: Prober, api: Api) -> TrialResult:
    if api is not Api.CHAT:
        return TrialOutcome.NO, "the chat route does not answer"
    answer = prober.ask(api, LONG, tools=[TOOL], tool_choice="required")
    return TrialOutcome.YES if answer.tool_calls else TrialOutcome.IGNORED, ""


def _accounts(prober: Prober, api: Api) -> TrialResult:
    result = prober.ask(api, LONG).speculation
    if result is None:
        return TrialOutcome.NO, ""
    return TrialOutcome.YES, f"{result.get('drafted')} drafted, {result.get('accepted')} accepted"


TRIALS: Final[Mapping[str, Trial]] = {
    "stream": _stream,
    "one name": _one_name,
    "own lists": _own_lists,
    "fields in stream": _fields_in_stream,
    "repeatable": _repeats,
    "logprobs": _logprobs,
    "ids in logprobs": _ids_in_logprobs,
    "token ids": _token_ids,
    "prompt as ids": _prompt_ids,
    "seed": _seed,
    **{name: partial(_cut, name) for name in ONE_TOKEN},
    "json schema": _structured,
    "tools": _tools,
    "drafts per answer": _accounts,
}
"""By name, in the order of the page."""
