"""`audit admission serve` as a process with a TLS certificate of its own, and many reviews over its socket."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.audit.gate.admission.stores import NAMED, deployment, pod, review


@dataclass(frozen=True)
class Timed:
    """Wrong answers, and the milliseconds of every review."""

    wrong: tuple[str, ...]
    milliseconds: tuple[float, ...]

    def quantile(self, share: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def certificate(folder: Path) -> None:
    """A self-signed certificate of 127.0.0.1 in cert.pem and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "specaudit")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


@contextmanager
def serving(url: str, folder: Path, *more: str) -> Iterator[int]:
    """The port of a running webhook."""
    certificate(folder)
    options = ["--policy", "standard", "--cert", folder / "cert.pem", "--tls-key", folder / "key.pem"]
    command = [sys.executable, "-m", "audit", "admission", "serve", *options, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([*command, "--store", url, *more], stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr if "listening" in line)
            yield int(line.partition("127.0.0.1:")[2].partition("/")[0])
        finally:
            server.terminate()


class Client:
    """A connection over TLS that checks the server's certificate."""

    def __init__(self, port: int, folder: Path) -> None:
        context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def post(self, body: bytes, kind: str = "application/json") -> tuple[int, dict]:
        self.connection.request("POST", "/validate", body, {"Content-Type": kind})
        found = self.connection.getresponse()
        return found.status, json.loads(found.read())


def many(client: Client, count: int) -> Timed:
    """Post reviews that must be allowed, denied and refused, in turn, and compare every answer."""
    swapped = {
        "specaudit.dev/target": NAMED["specaudit.dev/draft"],
        "specaudit.dev/draft": NAMED["specaudit.dev/draft"],
    }
    bodies = (
        lambda uid: (review(pod(NAMED), uid), 200, True),
        lambda uid: (review(pod(swapped), uid), 200, False),
        lambda uid: (review(deployment(NAMED), uid), 200, True),
        lambda uid: (review(deployment(None), uid), 200, False),
        lambda uid: (review({"kind": "Service"}, uid), 200, False),
        lambda uid: (b'{"kind": "AdmissionReview"', 400, None),
        lambda uid: (b"[" * 50_000, 400, None),
    )
    wrong, times = [], []
    for number in range(count):
        uid = f"uid-{number}"
        body, status, allowed = bodies[number % len(bodies)](uid)
        began = time.perf_counter()
        got, document = client.post(body)
        times.append(1000 * (time.perf_counter() - began))
        answer = document.get("response", {})
        right = got == status and (allowed is None or (answer.get("uid"), answer.get("allowed")) == (uid, allowed))
        if not right or (allowed is not None and not (answer["status"]["message"] and answer["status"]["code"])):
            wrong.append(f"{uid}: {got} {document}")
    return Timed(tuple(wrong), tuple(times))
