"""`audit serve`: an OpenAI-compatible server whose answers are records of a store."""

from __future__ import annotations

import secrets
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from audit.errors import UserError, needs
from audit.serve.limits import GAMMA, ROWS
from audit.store.base.keys import require_private
from audit.terminal.options import PATH, store_option
from audit.terminal.telemetry import telemetry_option, telling
from audit.text.printer import note, report
from engine.core.registry import NUMERICS

if TYPE_CHECKING:
    from audit.serve.opened_arm import OpenedArm

LOOPBACK: Final = ("127.0.0.1", "localhost")
AUTO: Final = "auto"
LEVELS: Final = ("tokens", "scalars", "topk", "full")
SHORTEST_TOKEN: Final = 16
COUNT: Final = click.IntRange(min=1)


@click.command("serve")
@click.argument("model")
@click.option("--draft", metavar="SOURCE", help="The draft model: a folder, .gguf file, bundled:NAME or hf:ORG/NAME.")
@click.option("--proposer", metavar="KIND", help="What drafts. Default: draft_model with --draft, else nothing.")
@click.option("--gamma", type=COUNT, default=GAMMA, show_default=True, help="Most drafted tokens per step.")
@click.option("--arm", metavar="NAME", help="The arm, if MODEL is a suite; needed if it has several.")
@click.option("--rows", type=COUNT, help=f"Choices decoded at once. Default: {ROWS}, or the suite's batch_size.")
@click.option("--record", type=click.Choice(LEVELS), default="scalars", show_default=True, help="Record level.")
@click.option("--numerics", type=click.Choice((AUTO, *NUMERICS)), help="Numerics of the model. Default: auto.")
@click.option("--no-store", is_flag=True, help="Record nothing.")
@click.option("--name", metavar="NAME", help="The model's name for clients. Default: MODEL, or the suite's target.")
@click.option("--host", default=LOOPBACK[0], show_default=True, help="Address to listen on; this machine's own only.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 picks one.")
@click.option("--token-file", type=PATH, metavar="FILE", help="A file that holds the token.")
@click.option("--no-token", is_flag=True, help="Answer every program of this machine.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of torch.")
@click.option("--context", type=COUNT, help="Most tokens of prompt and answer. Default: the model's context.")
@click.option("--max-tokens", type=COUNT, help="Most tokens of one answer. Default: the context.")
@click.option("--max-queue", type=COUNT, default=1024, show_default=True, help="Most choices that wait.")
@click.option("--max-body", type=COUNT, default=4 * 2**20, show_default=True, help="Most bytes of a request.")
@click.option("--timeout", type=click.FloatRange(1), default=600, show_default=True, help="Seconds of one request.")
@click.option("--log-requests", type=PATH, metavar="FILE", help="Write each accepted request to this new file.")
@click.option("--drain", type=click.IntRange(0), default=30, show_default=True, help="Seconds after SIGTERM.")
@telemetry_option
@store_option
def command(
    model: str,
    no_store: bool,
    name: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    no_token: bool,
    threads: int,
    context: int | None,
    max_tokens: int | None,
    max_queue: int,
    max_body: int,
    timeout: float,
    log_requests: Path | None,
    drain: int,
    telemetry: str | None,
    store: str,
    **source: Any,
) -> None:
    """Serve MODEL, or an arm of MODEL if it is a suite, to OpenAI clients on this machine, and record every answer.

    Requests join and leave the running batch. The id of a completion is the name of its record: `audit show ID` draws
    it. The server's counters at /metrics have vLLM's names. SIGTERM and Ctrl-C let running requests end.
    """
    if host not in LOOPBACK:
        raise UserError(f"--host {host}: the server is for this machine; leave it out, or forward the port: ssh -L")
    token = _token(token_file, no_token=no_token)
    with needs("serve"):
        import torch

        from audit.serve import opened_arm
        from audit.serve.limits import ServeLimits
        from audit.serve.request_log import new_log
        from audit.serve.serving_run import ServeOptions, serve
    from audit.commands.operate.installed import PACKAGE, version_of
    from audit.commands.operate.view import listening
    from audit.store import Store

    torch.set_num_threads(threads)
    wish = opened_arm.ServedSource(model, **source).wish()
    opened = opened_arm.open_arm(wish)
    own = version_of((PACKAGE,))
    most = _context(opened, context)
    limits = ServeLimits(most, min(max_tokens or most, most), max_body, max_queue, timeout, drain)
    version = f"{PACKAGE} {own[1] if own else '?'}"
    logging = nullcontext() if log_requests is None else new_log(log_requests)
    with listening(port) as listener, logging as log:
        options = ServeOptions(name or wish.models["target"].source, limits, token, version, log)
        address = f"http://{host}:{listener.getsockname()[1]}/v1"

        def ready(run: str) -> None:
            note(f"run {run} serves {options.name} at {address} until Ctrl-C")
            if token is not None and token_file is None:
                note(f"token: {token}")

        if no_store:
            serve(opened, options, None, listener, report, ready)
            return
        with Store.open(store, create=True) as place, telling(place, telemetry, PACKAGE, options.name):
            serve(opened, options, place, listener, report, ready)


def _context(opened: OpenedArm, context: int | None) -> int:
    """Most tokens of prompt and answer."""
    longest = opened.serving.sizes().context
    if context is not None and context > longest:
        raise UserError(f"--context {context}: the model's is {longest}; name at most that")
    return context or longest


def _token(file: Path | None, *, no_token: bool) -> str | None:
    """The token of the clients: none, that of a file, or a fresh one."""
    if no_token:
        if file is not None:
            raise UserError("--no-token and --token-file exclude each other; leave one out")
        return None
    if file is None:
        return secrets.token_urlsafe(32)
    try:
        token = file.read_text("utf-8").strip()
        require_private(file, "token")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {file}: cannot be read ({error}); write the token into it") from error
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"--token-file {file}: not one token of at least {SHORTEST_TOKEN} ASCII characters without a blank; "
            "make one: openssl rand -hex 32"
        )
    return token
