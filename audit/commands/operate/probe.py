"""`audit probe`: what an endpoint is and what it speaks, and a suite for it. Stores nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from audit.errors import CannotDecide, UserError, needs
from audit.terminal.options import PATH, json_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import echo, note

if TYPE_CHECKING:
    from audit.suite.probed import SuiteWishes
    from engine.backends.openai.probing import EndpointProbe
    from engine.backends.openai.probing.contract import Expectation

TIMEOUT_S: Final = 600
"""Seconds that a recorded request may take."""
COLUMNS = ("feature", "outcome", "detail")
EXPECTED = ("expectation", "result", "seen", "rests on it")


@click.command("probe")
@click.argument("url")
@click.option("--model", metavar="NAME", help="The served model. Default: the only one.")
@click.option("--api-key-env", metavar="NAME", help="Variable of the environment that holds the API key.")
@click.option("--own-route", is_flag=True, help="Probe SGLang's own route, /generate, and not OpenAI's.")
@click.option("--suite", "out", type=PATH, metavar="FILE", help="Write a suite to this new file.")
@click.option("--plain-url", metavar="URL", help="For the suite: the address of the target without speculation.")
@click.option("--target", metavar="SOURCE", help="For the suite: the target's folder, .gguf file or hf:ORG/NAME.")
@click.option("--contract", is_flag=True, help="Print what this program expects of such a server, and what holds.")
@click.option("--record", type=PATH, metavar="FILE", help="Send no request: pass those of clients on, and write them.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="For --record: port to listen on; 0 picks one.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    url: str,
    model: str | None,
    api_key_env: str | None,
    own_route: bool,
    out: Path | None,
    plain_url: str | None,
    target: str | None,
    contract: bool,
    record: Path | None,
    port: int,
    as_json: bool,
) -> None:
    """Find out what the OpenAI-compatible server at URL is and what it speaks.

    Sends about forty short requests: routes, streams, log-probabilities, token ids, seeds, truncation, JSON schemas,
    tools, counts of drafts. A parameter counts as kept if it changes what it must change. Prints the evidence level
    that an audit of this server would have, and with --suite writes a suite that fits it. With --contract the answers
    are held against what is expected of a server of this kind; attach the output to a report.

    With --record it listens on this machine for clients of URL, passes on what they send, and writes each answered
    request as a line that a suite takes as traffic (format openai_batch), until Ctrl-C.

    Exit codes: 0 done, 1 an expectation does not hold, 2 invalid input, 3 no route answers, or a trial decides nothing.
    """
    # imported late: the help needs no HTTP library
    from audit.suite.probed import SuiteWishes
    from audit.text.staged_files import require_new

    if record is not None:
        if out or contract or own_route or as_json or model:
            raise UserError("--record passes requests on and sends none of its own; leave the other options out")
        _record(url, record, port)
        return
    if out is None and (plain_url or target):
        raise UserError("--plain-url and --target belong to a suite; add --suite FILE")
    if out is not None:
        require_new(out)
    native = {"server": "sglang", "api": "generate"} if own_route else {}
    probe = _probed({"url": url, "model": model, "api_key_env": api_key_env, "tries": 1, **native})
    expected = probe.contract() if contract else ()
    if as_json:
        echo_json(probe.to_json() | ({"contract": list(map(_row, expected))} if contract else {}))
    elif contract:
        echo(*_facts(probe))
        echo_rows(EXPECTED, [tuple(_row(item).values()) for item in expected])
    else:
        echo(*_facts(probe))
        echo_rows(COLUMNS, [(feature.name, feature.outcome.value, feature.detail) for feature in probe.features])
    if probe.api is None:
        raise CannotDecide(f"{probe.url}: no route answers, so no suite fits")
    if out is not None:
        _write(out, probe, SuiteWishes(plain_url, target, api_key_env))
    failed = [item for item in expected if not item.holds]
    context.exit(0 if not failed else 1 if any(item.holds is False for item in failed) else 3)


@contextmanager
def _one_line() -> Iterator[None]:
    from engine.core.errors import EngineError

    try:
        yield
    except EngineError as error:
        raise UserError(str(error)) from error


def _record(url: str, file: Path, port: int) -> None:
    with needs("view"):
        from audit.serve.request_log import new_log, recording_proxy
    from audit.commands.operate.view import answer_until_stopped, listening
    from engine.backends.openai.settings import settings_of

    with _one_line():
        settings_of({"url": url})
    with listening(port) as listener, new_log(file) as log:
        note(f"requests to http://127.0.0.1:{listener.getsockname()[1]}{urlsplit(url).path} go to {url} until Ctrl-C")
        answer_until_stopped(recording_proxy(url, log, TIMEOUT_S), listener)


def _row(item: Expectation) -> dict[str, str]:
    holds = {True: "holds", False: "does not hold", None: "undecided"}[item.holds]
    return {"expectation": item.name, "result": holds, "seen": item.seen.detail, "rests on it": item.rests}


def _probed(given: Mapping[str, Any]) -> EndpointProbe:
    from engine.backends.openai.probing import probe
    from engine.backends.openai.settings import settings_of

    with _one_line():
        return probe(settings_of({key: value for key, value in given.items() if value is not None}))


def _facts(probe: EndpointProbe) -> Iterator[str]:
    identity = probe.identity
    why = f" ({'; '.join(identity.why)})" if identity.why else " (nothing names it)"
    yield f"server      {identity.product}{cell(why)}"
    yield f"version     {cell(identity.version or 'not reported')}"
    yield f"model       {cell(probe.model)}"
    yield f"context     {probe.context if probe.context is not None else 'not reported'}"
    yield f"speculation {_speculation(probe)}"
    yield f"evidence    level L{probe.level}, tokens from {ORIGINS[probe.tokens.value]}"
    yield ""


ORIGINS = {
    "server": "the server",
    "log-probabilities": "the log-probabilities",
    "characters": "the text: name the target's files for its tokenizer",
}


def _speculation(probe: EndpointProbe) -> str:
    counters = "counters at /metrics" if probe.counters else "no counters at /metrics"
    stated = {True: "on", False: "off", None: "not reported"}[probe.speculates]
    return f"{stated}; {counters}"


def _write(out: Path, probe: EndpointProbe, wishes: SuiteWishes) -> None:
    from audit.suite.loader import load_suite
    from audit.suite.probed import suite_text
    from audit.text.staged_files import write_staged

    write_staged({out: suite_text(probe, wishes).encode("utf-8")})
    load_suite(str(out))
    more = "" if wishes.plain else "; again with speculation on: add --baseline latest"
    note(f"{out}: written; next: audit run {out}{more}")
