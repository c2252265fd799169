"""Second accounts: every quantity that the arm records was compared with an independent account of it.

Claim: accounts. Null: none, it counts. A quantity is recorded if any request of the arm holds it; it was looked at
twice if one of the checks that compare it with another account (`audit.evidence.accounts.TABLE`) judged the arm: a
check that is `not_run` judges nothing. Verdict: certified if that holds for every recorded quantity; else inconclusive,
with the quantities and the checks that would judge them. A suite waives a quantity by name, with a reason
(`waive: {target rows: "..."}`), if no account of it can exist. Statistic: quantities without an account; `n`: recorded
ones. Cannot see: how much of a quantity a check compared (its own coverage and bound say that), or a fault that two
accounts share.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from audit.checks.base.interface import ByRequest, Check
from audit.errors import UserError
from audit.evidence.accounts import TABLE, Quantity
from audit.evidence.identity import ANSWER
from audit.evidence.reading import RequestReading
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.streams import STREAM, declared_filters
from audit.evidence.tool_calls import asks_for_calls
from audit.evidence.verdicts import CheckResult, Params, Verdict
from audit.text.schema_errors import suggestion
from audit.text.unsafe import quoted
from engine.core.types import QKind
from engine.record.trace import Trace

WAIVER: Final = "checks: {second_accounts: {waive: {%s}}}"


def recorded(reading: RequestReading) -> frozenset[Quantity]:
    """The quantities that one request holds."""
    request, arm = reading.request, reading.arm
    trace = request.trace
    held = {
        Quantity.COUNTS: True,
        Quantity.TOKENS: True,
        Quantity.TEXT: True,
        Quantity.ENDS: True,
        Quantity.LATENCIES: True,
        Quantity.ANSWERS: not arm.ours,
        Quantity.PARAMETERS: not arm.ours,
        Quantity.IDENTITY: ANSWER in trace.header.facts,
        Quantity.ROWS: arm.level >= Level.L2 or len(trace.logits_digest) > 0,
        Quantity.LOGPROBS: bool(np.isfinite(trace.logprob).any()),
        Quantity.STRUCTURE: trace.header.sampling.structured is not None,
        Quantity.MASKS: len(trace.mask_digest) > 0,
        Quantity.CALLS: asks_for_calls(request),
        Quantity.CHUNKS: STREAM in trace.header.facts,
        Quantity.FILTERS: bool(declared_filters(arm.effective)),
    }
    return frozenset(quantity for quantity, is_held in (held | _speculative(trace, arm)).items() if is_held)


def _speculative(trace: Trace, arm: ArmRecord) -> dict[Quantity, bool]:
    drawn = not trace.header.sampling.greedy
    decided = arm.level >= Level.L3
    return {
        Quantity.DRAFTS: len(trace.node_token) > 0,
        Quantity.DECISIONS: decided and len(trace.examined_node) > 0,
        Quantity.DRAFT_ROWS: decided and bool(np.any(trace.q_kind == QKind.FULL)),
        Quantity.NUMBERS: drawn and arm.ours and arm.level >= Level.L1,
        Quantity.SEEDS: drawn and not arm.ours and not decided and arm.effective.facts.get("seeds") != "none",
    }


@dataclass(slots=True)
class _Held:
    """Collects the quantities of the arm."""

    waived: Mapping[str, str]
    quantities: set[Quantity] = field(default_factory=set)

    def add(self, part: frozenset[Quantity]) -> None:
        """Those of the next request."""
        self.quantities |= part

    def result(self) -> CheckResult:
        """The recorded quantities; `settled` adds who looked at each."""
        listed = [quantity.value for quantity in Quantity if quantity in self.quantities]
        return CheckResult(Verdict.INCONCLUSIVE, "", details={"recorded": listed, "waived": dict(self.waived)})


def settled(held: CheckResult, results: Mapping[str, Verdict]) -> CheckResult:
    """The result, given the verdicts of the arm's other checks."""
    looked, lacking = {}, {}
    for name in held.details["recorded"]:
        quantity = Quantity(name)
        judges = [
            check for check in TABLE[quantity].judges if results.get(check, Verdict.NOT_RUN) is not Verdict.NOT_RUN
        ]
        if judges:
            looked[name] = judges
        elif name not in held.details["waived"] and not TABLE[quantity].optional:
            lacking[name] = ", ".join(
                f"{check} {'did not run' if check in results else 'is not listed'}" for check in TABLE[quantity].judges
            )
    once = [name for name in held.details["recorded"] if name not in looked]
    return CheckResult(
        verdict=Verdict.INCONCLUSIVE if lacking else Verdict.CERTIFIED,
        summary=_summary(len(held.details["recorded"]), once, lacking, held.details["waived"]),
        n=len(held.details["recorded"]),
        statistic=float(len(lacking)),
        details={**held.details, "looked_at_twice": looked, "looked_at_once": once},
    )


def _summary(count: int, once: list[str], lacking: Mapping[str, str], waived: Mapping[str, str]) -> str:
    text = f"{count - len(once)} of {count} recorded quantities were looked at twice"
    if lacking:
        named = "; ".join(f"{name} ({why})" for name, why in lacking.items())
        waiver = ", ".join(f'{name}: "REASON"' for name in lacking)
        return f"{text}; nobody judged {named}; if no check can, add to the suite {WAIVER % waiver}"
    reasons = (f"{name} ({waived.get(name) or TABLE[Quantity(name)].optional})" for name in once)
    return f"{text}; not looked at twice: {', '.join(reasons)}" if once else text


def _accept(params: Params) -> None:
    for name, reason in params["waive"].items():
        if name not in list(Quantity):
            raise UserError(f"waive: unknown quantity {quoted(name)}; {suggestion(name, list(Quantity))}")
        if not isinstance(reason, str) or not reason.strip():
            raise UserError(f"waive: {name} needs a reason, the sentence that a pass will show")


def _begin(_evidence: Evidence, params: Params) -> _Held:
    return _Held(params["waive"])


BY_REQUEST: ByRequest[Any] = ByRequest(recorded, _begin)
CHECK = Check(
    name="second_accounts",
    claim="accounts",
    defaults={"waive": {}},
    run=BY_REQUEST.run,
    null="every recorded quantity was compared with an independent account",
    effect="quantities without a second account",
    accept=_accept,
    by_request=BY_REQUEST,
    settle=settled,
)
