"""`python -m tests.bench admission`: 1,000 AdmissionReviews over TLS, one after the other on one connection."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from audit.store.base.keys import PrivateKey
from tests.audit.gate.admission.served import Client, many, serving
from tests.audit.gate.admission.stores import made_store, sign

KEY = PrivateKey("example.org/gate", b"1" * 32)


@click.command()
@click.option("--reviews", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--signed", is_flag=True, help="The webhook requires a signature.")
def main(reviews, signed) -> None:
    """Post reviews to a webhook of its own process, and print wrong answers and quantiles."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = made_store(folder)
        sign(url, KEY)
        (folder / "gate.pub").write_text(KEY.public.text)
        more = ("--trusted-key", str(folder / "gate.pub")) if signed else ()
        with serving(url, folder, *more) as port, Client(port, folder) as client:
            many(client, 20)
            found = many(client, reviews)
    quantiles = ", ".join(f"p{share * 100:g} {found.quantile(share):.1f} ms" for share in (0.5, 0.9, 0.99, 1.0))
    click.echo(f"{reviews} reviews, {len(found.wrong)} wrong; {quantiles}")
    click.echo(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, store in SQLite")
