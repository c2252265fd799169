"""`audit admission`: a Kubernetes webhook that admits what the gate allowed."""

import ssl
from pathlib import Path
from typing import Final

import click

from audit.errors import UserError, needs
from audit.gate.admission.decide import Rules, SignedDecisions
from audit.gate.policy import load_policy
from audit.gate.subjects import DIGEST
from audit.store.base.keys import PublicKey, read_public
from audit.store.ledger.notes import TreeHead, opened
from audit.store.reading.decision_index import DecisionReader
from audit.terminal.options import PATH, store_option
from audit.text.documents import decode_text, read_bytes
from audit.text.durations import age_option
from audit.text.printer import note, report

MOST_BYTES: Final = 2**20


@click.group("admission")
def command() -> None:
    """Admit pods to a Kubernetes cluster by the gate's decisions."""


@command.command("serve")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Accepted policy: a file, a packaged name, or sha256:DIGEST. Repeatable.",
)
@click.option("--cert", required=True, type=PATH, metavar="FILE", help="TLS certificate chain, PEM.")
@click.option("--tls-key", required=True, type=PATH, metavar="FILE", help="Private key of the certificate, PEM.")
@click.option("--client-ca", type=PATH, metavar="FILE", help="Accept only clients with a certificate of this CA, PEM.")
@click.option(
    "--key", type=PATH, metavar="FILE", help="Public key of audit keys: its checkpoints must cover each decision."
)
@click.option(
    "--checkpoint",
    type=PATH,
    metavar="FILE",
    help="Signed checkpoint from outside the store, which its log must continue; with --key.",
)
@click.option(
    "--trusted-key",
    "trusted",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Public key of audit keys that must have signed each decision (audit gate --key). Repeatable. "
    "Without one, the rows of the store are trusted.",
)
@click.option("--max-age", default="30d", show_default=True, metavar="DURATION", help="Largest age of a decision.")
@click.option(
    "--unannotated",
    type=click.Choice(["deny", "allow"]),
    default="deny",
    show_default=True,
    help="Pods without annotations.",
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8443, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 picks one."
)
@click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.1, 30.0),
    help="Seconds that a review waits for the store.",
)
@store_option
def serve(
    policies: tuple[str, ...],
    cert: Path,
    tls_key: Path,
    client_ca: Path | None,
    key: Path | None,
    checkpoint: Path | None,
    trusted: tuple[Path, ...],
    max_age: str,
    unannotated: str,
    host: str,
    port: int,
    timeout: float,
    store: str,
) -> None:
    """Answer AdmissionReviews over TLS: a pod runs only with a valid decision of audit gate.

    Annotations of the pod name what it runs: specaudit.dev/target, /draft, /tokenizer or another role of the run, and
    /configuration, each sha256:DIGEST; /run names a run. The newest decision on a run of these models under an
    accepted policy must be allow, fresh, covered by the log, and contradicted by no later result. With --trusted-key,
    a trusted key must have signed it for these models. A store that is gone, locked or slow, or whose log lost entries
    since the start or since --checkpoint, denies every review. Stop it with SIGTERM.
    """
    with needs("admission"):
        import uvicorn

        from audit.gate.admission.app import PATH, Webhook, application
    from audit.commands.operate.view import listening

    signed = _signed(trusted)
    rules = Rules(frozenset(map(_policy, policies)), age_option(max_age), unannotated == "allow")
    public = None if key is None else read_public(key)
    reader = DecisionReader(store, public, _heads(checkpoint, public))
    next(reader.find(["0" * 64], rules.policies), None)
    _check_tls(cert, tls_key, client_ca)
    webhook = Webhook(rules, reader, timeout, report, signed)
    options = uvicorn.Config(
        application(webhook),
        ssl_certfile=cert,
        ssl_keyfile=tls_key,
        ssl_ca_certs=None if client_ca is None else str(client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED,
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    if signed is None:
        report("no --trusted-key: the rows of the store are trusted, and no signature is required")
    with listening(port, host) as listener:
        note(f"listening on https://{host}:{listener.getsockname()[1]}{PATH}")
        uvicorn.Server(options).run(sockets=[listener])
    reader.close()


def _signed(trusted: tuple[Path, ...]) -> SignedDecisions | None:
    if not trusted:
        return None
    with needs("attest"):
        import securesystemslib.dsse  # noqa: F401  imported to fail at the start and not at the first review
    return SignedDecisions(tuple(map(read_public, trusted)))


def _heads(checkpoint: Path | None, key: PublicKey | None) -> tuple[TreeHead, ...]:
    if checkpoint is None:
        return ()
    if key is None:
        raise UserError("--checkpoint needs --key FILE, the public key that signed it")
    return (opened(decode_text(str(checkpoint), read_bytes(checkpoint, MOST_BYTES)), key, str(checkpoint)),)


def _policy(name: str) -> str:
    return name.removeprefix("sha256:") if DIGEST.fullmatch(name) else load_policy(name).sha256


def _check_tls(cert: Path, key: Path, client_ca: Path | None) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise UserError(f"{cert}, {key}: no TLS certificate with its unencrypted key ({error})") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{client_ca}: no certificates ({error})") from error
