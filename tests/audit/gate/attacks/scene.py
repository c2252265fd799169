"""A store with an honest run under a policy, and people who sign statements about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from audit.attest.signing import sign_and_store
from audit.attest.statement import InToto
from audit.attest.waivers import (
    Author,
    PolicyReference,
    ReviewOutcome,
    RunReference,
    SignedReview,
    Unmet,
    Waiver,
    review_statement,
    waiver_statement,
)
from audit.gate.policy import load_policy
from audit.store import Store
from audit.store.base import keys
from audit.store.base.keys import PrivateKey
from tests.audit.gate.attacks.honest import POLICY, SUITE, Answer, asked, copied, ran, written
from tests.audit.invoke import invoke

DAY = timedelta(days=1)
NAMES = ("alice", "bob", "carol", "mallory")
APPROVE, REJECT = ReviewOutcome


@dataclass(frozen=True)
class Honest:
    """A store with a run that lacks prompts in one arm, and key pairs of four people."""

    store: Path
    folder: Path

    def key(self, name: str) -> PrivateKey:
        return keys.read_private(self.folder / name)

    def public(self, *names: str) -> dict[str, str]:
        return {name: self.key(name).public.text for name in names}


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Honest:
    folder = tmp_path_factory.mktemp("honest")
    for name in NAMES:
        keys.init(folder / name, f"example.org/{name}")
    return Honest(ran(folder, SUITE), folder)


def rules(honest: Honest, **changes: Any) -> dict[str, Any]:
    """A policy whose only unmet requirement is a claim that the sampled arm's suite did not check."""
    law = {"claim": "law", "checks": ["law"], "arms": {"names": ["sampled"]}}
    trusted = {"trusted": honest.public("carol")}
    waivers = {"keys": honest.public("alice", "bob", "carol"), "longest": "14d", "requirements": ["law"]}
    return POLICY | {"require": [*POLICY["require"], law], "waivers": waivers, "keys": trusted} | changes


class Scene:
    """A copy of the honest store under a policy, to which anybody adds statements."""

    def __init__(self, honest: Honest, folder: Path, policy: dict[str, Any] | None = None) -> None:
        self.honest, self.folder = honest, folder
        self.store = copied(honest.store, folder)
        self.document = policy or rules(honest)
        self.policy = load_policy(written(folder, "waived.yaml", self.document))
        self.now = datetime.now(UTC)
        with Store.open(str(self.store), create=False) as store:
            run = store.load_run(store.resolve("latest"))
        self.run = RunReference(run.ulid, str(run.record_root))

    def author(self, name: str, at: datetime | None = None, actor: str | None = None) -> Author:
        return Author(actor or name, self.honest.key(name).public, at or self.now - timedelta(minutes=1))

    def waiver(self, **changes: Any) -> Waiver:
        made = Waiver(
            run=self.run,
            policy=PolicyReference(self.policy.name, self.policy.sha256),
            unmet=Unmet("cannot_decide", "law", "sampled", "law"),
            reason="the law was measured in another run",
            ticket="OPS-7",
            author=self.author("alice"),
            until=self.now + 7 * DAY,
        )
        return replace(made, **changes)

    def review(self, waiver: str | None, name: str = "bob", **changes: Any) -> SignedReview:
        policy = PolicyReference(self.policy.name, self.policy.sha256)
        author = self.author(name, self.now)
        made = SignedReview(self.run, policy, waiver, APPROVE, None, "seen", author, None)
        return replace(made, **changes)

    def add(self, item: Waiver | SignedReview, signer: str = "", run: str = "latest") -> str:
        """Sign with the key of `signer`, else of the stated author; returns the id."""
        statement = waiver_statement(item) if isinstance(item, Waiver) else review_statement(item)
        return self.add_statement(statement, signer or item.author.key.name.rpartition("/")[2], run)

    def add_statement(self, statement: InToto, signer: str, run: str = "latest") -> str:
        with Store.open(str(self.store), create=False) as store:
            ulid = store.resolve(run)
            (signed,) = sign_and_store(store, [statement], [self.honest.key(signer)], ulid, self.now)
        return signed.payload_sha256

    def waived(self, **changes: Any) -> str:
        """A waiver that another person approved."""
        waiver = self.add(self.waiver(**changes))
        self.add(self.review(waiver))
        return waiver

    def signed_log(self, signer: str) -> None:
        """A checkpoint of the log by somebody's key."""
        key, note = str(self.honest.folder / signer), str(self.folder / f"{signer}.note")
        made = invoke("db", "checkpoint", "--key", key, "--out", note, "--store", str(self.store))
        assert made.exit_code == 0, made.output

    def bundle(self, signer: str | None = None, run: str = "latest") -> str:
        """A bundle of the run, after a checkpoint by somebody."""
        if signer is not None:
            self.signed_log(signer)
        path = str(self.folder / f"run{len(list(self.folder.glob('*.zip')))}.zip")
        made = invoke("export", run, "--out", path, "--store", str(self.store))
        assert made.exit_code == 0, made.output
        return path

    def asked(self, *more: str) -> Answer:
        return asked(self.folder, "latest", *more, policy=self.document, store=self.store)


@pytest.fixture
def scene(honest, tmp_path) -> Scene:
    return Scene(honest, tmp_path)
