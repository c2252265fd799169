"""What somebody with write access to the store does to have a pod admitted that no trusted key allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from audit.gate.decision import Decision
from audit.gate.policy import load_policy
from audit.store import Store
from audit.store.base.keys import PrivateKey
from tests.audit.gate.admission.stores import NAMED, decide, sign
from tests.audit.gate.runs import TARGET
from tests.audit.store.build import connected

OURS = PrivateKey("example.org/gate", b"1" * 32)
THEIRS = PrivateKey("example.org/other", b"2" * 32)
OTHER = "9" * 64
UNSIGNED = "no trusted key signed the newest decision"
EDITED = "was edited or deleted after it was logged"
OTHERS = NAMED | {"specaudit.dev/target": f"sha256:{OTHER}"}


@dataclass(frozen=True)
class Forgery:
    """An act on a store with a signed allow, words of the denial, the annotations of the pod, and the undoing."""

    act: Callable[[str], None]
    words: str
    pod: dict[str, str] | None = None
    undo: Callable[[str], None] | None = None


def edit(url: str, *statements: str) -> None:
    """Run statements on a store past its facade, without its triggers."""
    with connected(url) as connection:
        for name in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            connection.execute(text(f"DROP TRIGGER {name}"))
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()


def forged_after_a_block(url: str) -> None:
    sign(url, OURS, Decision.BLOCK)
    decide(url)


def replayed_after_a_block(url: str) -> None:
    """The row of the honest allow again, as the newest."""
    with Store.open(url, create=False) as store:
        honest = store.decisions(store.resolve("latest"))[-1]
        sign(url, OURS, Decision.BLOCK)
        store.add_decision(honest)


def newest(column: str, value: str) -> Callable[[str], None]:
    """Writes a value into the row of the newest decision."""
    last = "(SELECT max(id) FROM gate_decision)"
    return lambda url: edit(url, f"UPDATE gate_decision SET {column} = '{value}' WHERE id = {last}")


def edited_block(url: str) -> None:
    sign(url, OURS, Decision.BLOCK)
    newest("decision", "allow")(url)


def renamed(old: str, new: str) -> Callable[[str], None]:
    return lambda url: edit(url, f"UPDATE artifact SET sha256 = '{new}' WHERE sha256 = '{old}'")


def under_another_policy(url: str) -> None:
    """The row says that a decision was made under the accepted policy; its statement says another one."""
    sign(url, OURS, policy="throughput")
    newest("policy_sha256", load_policy("standard").sha256)(url)


FORGERIES = {
    "an expired decision": Forgery(lambda url: sign(url, OURS, age=timedelta(days=31)), "744.0 hours old, 720.0"),
    "a row without a signature": Forgery(decide, UNSIGNED),
    "a row that another key signed": Forgery(lambda url: sign(url, THEIRS), UNSIGNED),
    "a row after a signed block": Forgery(forged_after_a_block, UNSIGNED),
    "an old allow after a signed block": Forgery(replayed_after_a_block, "a decision that a trusted key signed at"),
    "a signed block": Forgery(lambda url: sign(url, OURS, Decision.BLOCK), 'is "block", not allow'),
    "a block edited to allow": Forgery(edited_block, EDITED, undo=newest("decision", "block")),
    "a signature about other models": Forgery(
        renamed(TARGET, OTHER), "the signed decision is about other models", OTHERS, renamed(OTHER, TARGET)
    ),
    "another policy": Forgery(
        under_another_policy, EDITED, undo=newest("policy_sha256", load_policy("throughput").sha256)
    ),
    "a decision from the future": Forgery(lambda url: sign(url, OURS, age=-timedelta(hours=1)), "from the future"),
}
