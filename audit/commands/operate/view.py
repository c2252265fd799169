"""`audit view`: the pages of a store on loopback, until Ctrl-C."""

import socket
import webbrowser
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from audit.errors import UserError, needs
from audit.terminal.options import store_option
from audit.text.printer import note, report

if TYPE_CHECKING:
    from starlette.types import ASGIApp

LOOPBACK: Final = "127.0.0.1"
DRAIN_S: Final = 2
"""Seconds that an unfinished page has at the end."""


@click.command("view")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on; 0, the default, picks one.")
@click.option(
    "--host", default=LOOPBACK, show_default=True, help="Address to listen on; the pages are for this machine only."
)
@click.option("--no-open", is_flag=True, help="Print the address, and open no browser.")
@store_option
def command(port: int, host: str, no_open: bool, store: str) -> None:
    """Show the pages of a store in a browser: runs, requests, trends, and the difference between two runs.

    The pages are read-only and live: a run appears while it is recorded. Their address holds a random token, and they
    answer no other machine. Stop the server with Ctrl-C.
    """
    if host != LOOPBACK:
        raise UserError(f"--host {host}: the pages are for this machine; leave it out, or forward the port: ssh -L")
    with needs("view"):
        import uvicorn  # noqa: F401  imported to fail at the start

        from audit.store.browse.browser import Browser
        from audit.view.access import new_access
        from audit.view.app import Viewer, application
        from audit.view.drawer import Drawer
        from audit.view.templates_of import compile_all, templates
    with (
        Browser.open(store, create=False, read_only=True) as browser,
        listening(port) as listener,
        Drawer(report) as drawer,
    ):
        first = drawer.warm_up()
        access, made = new_access(listener.getsockname()[1]), templates(drawer.begin)
        compile_all(made)
        app = application(Viewer(browser, report, made), access)
        wait(first)
        note(f"the store is shown at {access.address} until Ctrl-C")
        if not no_open:
            webbrowser.open(access.address)
        answer_until_stopped(app, listener)


def answer_until_stopped(app: "ASGIApp", listener: socket.socket) -> None:
    """Run the application on the socket until Ctrl-C or SIGTERM."""
    import uvicorn

    options = uvicorn.Config(
        app, access_log=False, lifespan="off", log_level="error", server_header=False, timeout_graceful_shutdown=DRAIN_S
    )
    # uvicorn raises it again after it has closed every connection
    with suppress(KeyboardInterrupt):
        uvicorn.Server(options).run(sockets=[listener])


def listening(port: int, host: str = "") -> socket.socket:
    """A socket on the host, by default on loopback; port 0 picks one. Raises UserError: it cannot be used."""
    try:
        listener = socket.create_server(
            (host or LOOPBACK, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        place = f"--host {host} --port {port}" if host else f"--port {port}"
        raise UserError(f"{place}: cannot listen there ({error.strerror or error}); name another port") from error
    # asyncio does not do it for a socket that it is given, and an answer in two parts would wait for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
