"""`audit watch`: follow the counters of a live server, keep the series, and alarm when acceptance fell."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from audit.errors import CannotDecide, UserError
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import echo_json, echo_rows
from audit.terminal.telemetry import telemetry_option, telling
from audit.text.durations import HINT, parse_duration
from audit.text.printer import echo, note
from audit.text.unsafe import quoted

if TYPE_CHECKING:
    from audit.store import Store
    from audit.store.reading.watches import StoredWatch, WatchReading, WatchSettings
    from audit.watch.canary import CanaryRequest
    from audit.watch.follow import Follower, Look
    from audit.watch.webhook import AlarmWebhook
    from engine.backends.openai.client import Endpoint

FILE = click.Path(path_type=Path, dir_okay=False)
SHOWN: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class WatchChoices:
    """The reference and the limits that the command line gives."""

    run: str | None
    arm: str | None
    reference: float | None
    tolerance: float
    rise: float | None
    unit: float | None
    false_alarms: float
    interval: float


@dataclass(frozen=True, slots=True)
class AlarmOutputs:
    """Where looks and alarms go besides stdout."""

    webhook: AlarmWebhook | None
    textfile: Path | None
    as_json: bool
    looked: Callable[[Sequence[WatchReading]], None] | None = None
    """Gets the readings for telemetry."""


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """The connection to a server, with the address of its counters."""

    endpoint: Endpoint
    address: str
    timeout: float

    def page(self) -> str:
        """The page of counters; raises `AttemptError`."""
        text = self.endpoint.get(self.address, self.timeout)
        if text.lstrip()[:1] not in ("[", "{"):
            return text
        # TensorRT-LLM has JSON at the usual address
        return self.endpoint.get(f"{self.address.removesuffix('/metrics')}/prometheus/metrics", self.timeout)

    def answer(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to one request; raises `AttemptError`."""
        return self.endpoint.ask(path, body).document


@click.command("watch")
@click.argument("url")
@click.option("--run", metavar="RUN", help="Run whose acceptance is the reference: a ULID, a prefix, or latest.")
@click.option("--arm", metavar="ARM", help="The run's arm. Default: the only candidate that drafted.")
@click.option("--reference", type=float, metavar="RATE", help="Accepted per drafted token, instead of a run's.")
@click.option(
    "--tolerance", type=float, default=0.1, show_default=True, help="Share of a run's bound that may be lost."
)
@click.option(
    "--rise", type=float, metavar="RATE", help="Alarm also above this rate; each test has half of the alarms."
)
@click.option(
    "--unit",
    type=float,
    metavar="TOKENS",
    help="Most drafted tokens of one piece of traffic; those of a request if requests differ. Default: a draft.",
)
@click.option(
    "--false-alarms", type=float, default=0.01, show_default=True, help="Expected false alarms in 30 days, at most."
)
@click.option("--interval", type=float, default=60.0, show_default=True, help="Seconds between readings.")
@click.option("--for", "lasting", metavar="DURATION", help="Stop after this time, such as 12h. Default: at a signal.")
@click.option("--once", is_flag=True, help="Take one reading and go on with the stored series, for cron.")
@click.option("--show", is_flag=True, help="Read nothing; show the stored series of the last 30 days by day.")
@click.option("--by", multiple=True, metavar="LABEL", help="Also watch each value of a label by itself; repeatable.")
@click.option("--canary", type=FILE, help="Prompts (JSONL) that are sent greedily after every reading.")
@click.option(
    "--canary-tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens of each of its answers."
)
@click.option("--api-key-env", metavar="NAME", help="Variable of the environment that holds the API key.")
@click.option("--timeout", type=float, default=10.0, show_default=True, help="Seconds for one page.")
@click.option("--webhook", metavar="URL", help="Post every alarm here, as signed JSON.")
@click.option("--webhook-key-file", type=FILE, help="Key that signs it; only its owner may read the file.")
@click.option("--textfile", type=FILE, help="Keep gauges of the last reading in this file, for node_exporter.")
@telemetry_option
@json_option
@wide_option
@store_option
@click.pass_context
def command(
    context: click.Context,
    /,
    url: str,
    lasting: str | None,
    once: bool,
    show: bool,
    by: tuple[str, ...],
    canary: Path | None,
    canary_tokens: int,
    api_key_env: str | None,
    timeout: float,
    webhook: str | None,
    webhook_key_file: Path | None,
    textfile: Path | None,
    telemetry: str | None,
    as_json: bool,
    store: str,
    **choices: Any,
) -> None:
    """Follow the /metrics of the live server at URL, and alarm when acceptance fell.

    Reads the counters of vLLM, llama.cpp, TensorRT-LLM, SGLang and `audit serve`, by model. Every reading is stored.
    With --canary the same requests are sent after every reading, and changed answers are reported. Without --run and
    --reference nothing is tested. The test is valid at any time: on traffic whose acceptance keeps the reference, at
    most --false-alarms alarms are expected in 30 days. An alarm says that acceptance fell, not why.

    Exit codes: 0 no alarm, 1 an alarm, 2 invalid input, 3 nothing could be read, or nothing compared with a reference.
    """
    # imported late: the help needs neither numpy nor an HTTP library
    from audit.store import Store
    from audit.watch.canary import canary_requests

    until = _until(lasting, once)
    outputs = AlarmOutputs(_webhook(webhook, webhook_key_file), textfile, as_json)
    address = _address(url)
    if show:
        with Store.open(store, create=False) as opened:
            _show(opened, address, as_json)
        return
    _require_labels(by)
    requests = () if canary is None else canary_requests(canary, canary_tokens)
    with _endpoint(address, api_key_env, timeout) as endpoint, Store.open(store, create=True) as opened:
        settings = _settings(opened, address, WatchChoices(**choices))
        server = WatchedServer(endpoint, address, timeout)
        with telling(opened, telemetry, "watched", address) as told:
            ends = replace(outputs, looked=None if told is None else told.looked)
            context.exit(_watch(opened, settings, server, by, requests, ends, until))


def _until(lasting: str | None, once: bool) -> float:
    if once:
        if lasting is not None:
            raise UserError("--once takes one reading; leave out --for")
        return 0.0
    duration = None if lasting is None else parse_duration(lasting)
    if lasting is not None and not duration:
        raise UserError(f"--for {quoted(lasting)}: {HINT}")
    return float("inf") if duration is None else duration.total_seconds()


def _require_labels(names: tuple[str, ...]) -> None:
    from engine.backends.openai.server_counters import LABEL, OWN_LABELS

    for name in names:
        if not LABEL.fullmatch(f'{name}=""') or name in OWN_LABELS:
            raise UserError(f"--by {quoted(name)}: write a label of the counters other than {', '.join(OWN_LABELS)}")


def _webhook(url: str | None, key_file: Path | None) -> AlarmWebhook | None:
    from audit.watch.webhook import webhook_of

    if (url is None) != (key_file is None):
        raise UserError("--webhook and --webhook-key-file belong together: an alarm is always signed")
    return None if url is None or key_file is None else webhook_of(url, key_file)


def _address(url: str) -> str:
    """The address of the counters of a server, from its own address, its API's or theirs."""
    from audit.watch.address import counters_address
    from engine.backends.openai.settings import origin_of
    from engine.core.errors import InvalidRequest

    try:
        origin_of("URL", url)
    except InvalidRequest as error:
        raise UserError(str(error).removeprefix("engine: ").replace("/v1", "")) from error
    return counters_address(url)


def _endpoint(address: str, api_key_env: str | None, timeout: float) -> Endpoint:
    from engine.backends.openai.client import Endpoint
    from engine.backends.openai.settings import settings_of
    from engine.core.errors import EngineError

    if not 0.0 < timeout <= 600.0:
        raise UserError(f"--timeout {timeout:g}: write seconds, above 0 and at most 600")
    given = {"url": f"{address.removesuffix('/metrics')}/v1"}
    given |= {} if api_key_env is None else {"api_key_env": api_key_env}
    try:
        return Endpoint(settings_of(given))
    except EngineError as error:
        raise UserError(str(error).removeprefix("engine: ")) from error


def _settings(store: Store, address: str, choices: WatchChoices) -> WatchSettings:
    from audit.store.reading.watches import WatchSettings
    from audit.watch import reference

    if choices.run is not None and choices.reference is not None:
        raise UserError("--run and --reference are two references; give one")
    if choices.run is None and choices.arm is not None:
        raise UserError("--arm names an arm of a run; add --run RUN")
    if not 1.0 <= choices.interval <= 86400.0:
        raise UserError(f"--interval {choices.interval:g}: write seconds, from 1 to 86400")
    if not 0.0 < choices.false_alarms < 1.0:
        raise UserError(f"--false-alarms {choices.false_alarms:g}: write a number above 0 and below 1")
    if choices.unit is not None and not 1.0 <= choices.unit <= 1e9:
        raise UserError(f"--unit {choices.unit:g}: write drafted tokens, at least 1")
    run = None if choices.run is None else store.resolve(choices.run)
    totos = None if choices.reference is None else reference.given(choices.reference)
    if run is not None:
        totos = reference.of_run(store, run, choices.arm, choices.tolerance)
    if choices.rise is not None and not (totos.rate if totos else 0.0) < choices.rise < 1.0:
        raise UserError(f"--rise {choices.rise:g}: write a rate above the reference and below 1")
    return WatchSettings(
        url=address,
        run=run,
        reference=totos.rate if totos else None,
        reference_from=totos.origin if totos else "none: nothing is tested",
        rise_reference=choices.rise,
        unit=choices.unit,
        alpha=choices.false_alarms,
        interval_s=choices.interval,
    )


def _watch(
    store: Store,
    settings: WatchSettings,
    server: WatchedServer,
    by: Sequence[str],
    requests: Sequence[CanaryRequest],
    outputs: AlarmOutputs,
    until: float,
) -> int:
    """Look until the time is over or a signal comes; returns the exit code.

    Values of the labels `by`, and the canary's `requests`, have series of their own.
    """
    from audit.evidence import environment
    from audit.watch.canary import Canary
    from audit.watch.follow import Follower
    from engine.backends.openai.server_counters import by_model

    watch = store.watches.begin(settings, environment.actor(), datetime.now(UTC))
    canary = Canary(requests, server.answer, lambda: by_model(server.page())) if requests else None
    follower = Follower(store, watch, server.page, canary, by)
    note(f"watch {watch.id}: {settings.url}, {_tested(settings)}")
    alarms = read = tested = 0
    with _stopped() as stop:
        end, planned = time.monotonic() + until, time.monotonic()
        while True:
            look = follower.look(lambda: datetime.now(UTC))
            _report(watch, follower, look, outputs)
            alarms, read, tested = alarms + len(look.alarms), read + look.read, tested + look.tested
            # from a fixed plan, so that slow answers do not stretch the interval
            planned = max(planned + settings.interval_s, time.monotonic())
            if planned > end or stop.wait(planned - time.monotonic()):
                break
    if alarms:
        return 1
    if not read:
        raise CannotDecide(f"{settings.url}: nothing could be read: {look.readings[-1].gap}")
    if not tested and (settings.reference is not None or settings.rise_reference is not None):
        raise CannotDecide(f"{settings.url}: nothing was tested: {look.readings[0].gap}")
    return 0


def _tested(settings: WatchSettings) -> str:
    if settings.reference is None:
        return "no reference: the series is stored, nothing is tested"
    return f"reference {settings.reference:.4f} accepted per drafted token ({settings.reference_from})"


def _report(watch: StoredWatch, follower: Follower, look: Look, outputs: AlarmOutputs) -> None:
    from audit.text.staged_files import staged
    from audit.watch import messages

    if outputs.looked is not None:
        outputs.looked(look.readings)
    for reading in look.readings:
        if outputs.as_json:
            echo(json.dumps(messages.reading_document(reading)))
        else:
            echo(messages.line(reading, follower.detectors.log_limit(reading)))
    for alarm in look.alarms:
        note(messages.alarm_line(alarm))
        problem = outputs.webhook and outputs.webhook.send(messages.alarm_document(watch, alarm))
        if problem:
            note(f"webhook: the alarm was not delivered: {problem}")
    if outputs.textfile is not None:
        content = messages.textfile(watch, look.readings, follower.detectors)
        with staged({outputs.textfile: content.encode("utf-8", "replace")}):
            pass


@contextmanager
def _stopped() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that a look ends as a whole."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(store: Store, address: str, as_json: bool) -> None:
    from audit.watch import messages

    watches = [watch for watch in store.watches.all() if watch.settings.url == address]
    if not watches:
        raise UserError(f"the store has no watch of {address}")
    since = datetime.now(UTC) - SHOWN
    shown = {watch.id: list(messages.days(store.watches.readings(watch.id, since))) for watch in watches}
    if as_json:
        echo_json(
            {watch: [dict(zip(messages.DAYS, row, strict=True)) for row in rows] for watch, rows in shown.items()}
        )
        return
    for watch in watches:
        echo(f"watch {watch.id}: {address}, {_tested(watch.settings)}")
        if shown[watch.id]:
            echo_rows(messages.DAYS, shown[watch.id])
