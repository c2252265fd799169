"""Requests to the gate, and the decision with its request, as values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from audit.attest.statement import SignedStatement
from audit.errors import needs
from audit.gate.decision import Decision, GateOutcome
from audit.gate.facts import RunFacts
from audit.gate.policy import Policy
from audit.gate.serving_profile import ServingProfile, narrowed
from audit.gate.subjects import Subject
from audit.store import StoredDecision, StoredRun
from audit.store.base.keys import PrivateKey
from audit.text.documents import decode_text, read_bytes

BUNDLE = "bundle "
"""Beginning of the text that names where the record of a decision on a bundle came from."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Keys that sign a decision, and the file for its envelope."""

    keys: tuple[PrivateKey, ...]
    out: Path | None = None


def _silent(_arm: str) -> None:
    """Announce no arm."""


@dataclass(frozen=True, slots=True)
class GateRequest:
    """A caller's request.

    now: the moment of the decision, with a time zone.
    no_subject: waive the roles that the policy wants named and `subjects` does not name; recorded.
    serves: the deployment's own profile, within the policy's; None stands for that.
    trust_verdicts: take the stored verdicts instead of computing them; recorded.
    expected: hex digest that the policy must have; None accepts any.
    checkpoint: a signed checkpoint of the store's log, kept outside.
    proof: a proof of `audit db prove`.
    signer: signs the decision; None leaves it unsigned.
    rego: modules that must let the deployment through too.
    warn_only: report what is not allowed with exit code 0; the decision stays and is recorded as it is.
    announce: is called with each arm that is judged.
    """

    policy: Policy
    subjects: tuple[Subject, ...]
    actor: str
    now: datetime
    no_subject: bool = False
    serves: ServingProfile | None = None
    trust_verdicts: bool = False
    expected: str | None = None
    checkpoint: Path | None = None
    proof: Path | None = None
    signer: Signer | None = None
    rego: tuple[RegoModule, ...] = ()
    warn_only: bool = False
    announce: Callable[[str], None] = _silent

    @property
    def serving(self) -> ServingProfile:
        """The profile that the run must show."""
        return narrowed(self.policy.parts.serving, self.serves)


@dataclass(frozen=True, slots=True)
class GateJudgement:
    """A decision with what was asked.

    facts: None if there is no such run.
    origin: where the record is.
    signed: the signed statement of the decision, if the caller asked for one.
    """

    facts: RunFacts | None
    outcome: GateOutcome
    request: GateRequest
    origin: str
    signed: SignedStatement | None = None

    @property
    def run(self) -> StoredRun | None:
        """The run, if there is one."""
        return self.facts.run if self.facts else None

    @property
    def warns(self) -> bool:
        """True if the caller asked for a warning instead of a failure; an error of the gate itself always fails."""
        return self.request.warn_only and self.outcome.answer is not Decision.ALLOW and not self.outcome.broken_off

    @property
    def exit_code(self) -> int:
        """0 for allow, and for a warning that the caller asked for; else 1 or 3."""
        return 0 if self.warns else self.outcome.answer.exit_code


def stored_decision(judgement: GateJudgement, *, known: bool = True) -> StoredDecision:
    """The decision as a row; `known` if the store that keeps it has the run."""
    request, run = judgement.request, judgement.run
    return StoredDecision(
        run=run.ulid if run and known else None,
        policy_sha256=request.policy.sha256,
        policy=request.policy.document,
        decision=judgement.outcome.answer.value,
        reasons=tuple(str(reason) for reason in judgement.outcome.reasons),
        actor=request.actor,
        created_at=request.now,
    )


MOST_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class RegoModule:
    """The text of a Rego module as it was given, its file's name, and its digest.

    The engine, regopy, comes with the extra `specaudit[rego]`.
    """

    name: str
    text: str
    sha256: str


def read_modules(paths: Sequence[Path]) -> tuple[RegoModule, ...]:
    """The modules of files; nothing is compiled here.

    Raises:
        UserError: a file that cannot be read, or no engine.
    """
    if paths:
        with needs("rego"):
            if find_spec("regopy") is None:
                raise ImportError(name="regopy")
    return tuple(map(_read, paths))


def _read(path: Path) -> RegoModule:
    raw = read_bytes(path, MOST_BYTES)
    return RegoModule(path.name, decode_text(str(path), raw), hashlib.sha256(raw).hexdigest())
