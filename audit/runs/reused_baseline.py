"""Reuses the plain arms of an earlier run instead of running new ones.

For a single endpoint: record a baseline with speculation off, restart with speculation on, compare with the stored
baseline. The new run stores the reused records with their origin, so that its evidence is complete.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from audit.errors import CannotDecide, UserError
from audit.evidence.records import ArmKind, ArmRecord, RequestRecord
from audit.store import RunStatus, Store, StoredRun
from engine.backends.engine_spec import ModelFacts
from engine.backends.interface import Engine, Prompt
from engine.core.errors import EngineError
from engine.core.types import Generation, Request
from engine.record.effective import ORIGIN, Effective
from engine.record.trace import TraceHeader, encode

PLAIN: Final = (ArmKind.BASELINE, ArmKind.CONTROL)
"""Kinds of arms that decode without speculation."""
FIX: Final = "run this suite first with speculation off, and name that run"


@dataclass(frozen=True, slots=True)
class ReusedRun:
    """A finished run and its plain arms by name."""

    run: StoredRun
    arms: Mapping[str, ArmRecord]

    def require_models(self, models: Sequence[ModelFacts]) -> None:
        """Raise UserError unless the target and its tokenizer equal those of the earlier run."""
        before = {used.role: used.sha256 for used in self.run.artifacts}
        target = next(model for model in models if model.name == "target")
        for role, now in (("target", target.sha256), ("tokenizer", target.tokenizer_sha256)):
            if before.get(role) != now:
                raise UserError(f"run {self.run.ulid}: its {role} differs from this suite's; {FIX}")

    def engine(self, name: str, live: Engine) -> Engine:
        """Return an engine that replays the earlier arm of that name.

        Raises:
            UserError: the earlier run has no such arm.
        """
        if name not in self.arms:
            known = ", ".join(self.arms) or "none"
            raise UserError(f"run {self.run.ulid} has no plain arm {name}, it has {known}; {FIX}")
        arm = self.arms[name]
        origin = {"run": self.run.ulid, "record_root": self.run.record_root}
        headers = {request.request_id: request.trace.header for request in chain(arm.requests, arm.failed, arm.refused)}
        return ReusedEngine(live, arm, origin, headers)


def reused_run(store: Store, name: str) -> ReusedRun:
    """Read a run's plain arms.

    Raises:
        UserError: the run does not exist or is not finished.
        CannotDecide: the run has changed since it finished.
    """
    record = store.load_run(store.resolve(name))
    if record.status is not RunStatus.FINISHED:
        raise UserError(f"run {record.ulid} is {record.status}; finish it first: audit resume {record.ulid}")
    broken = store.broken_places(record.ulid)
    if broken:
        raise CannotDecide(
            f"run {record.ulid} has changed since it finished ({broken[0].place}: {broken[0].message}); "
            f"list every place: audit db check {record.ulid}"
        )
    names = [arm.name for arm in record.arms if arm.kind in PLAIN]
    return ReusedRun(record, {arm: store.load_arm(record.ulid, arm) for arm in names})


def begun_with(store: Store, run: StoredRun) -> ReusedRun | None:
    """The earlier run whose plain arms a run reuses; None if the run makes its own.

    Raises as `reused_run`.
    """
    origin = next((arm.effective.origin for arm in run.arms if arm.effective.origin is not None), None)
    return None if origin is None else reused_run(store, origin.run)


@dataclass(frozen=True, slots=True)
class ReusedEngine:
    """Replays the answers of an earlier arm; the live engine encodes prompts."""

    live: Engine
    arm: ArmRecord
    origin: Mapping[str, Any]
    headers: Mapping[str, TraceHeader]
    """Headers by request name; the traces are loaded on access and not cached."""

    def evidence_level(self) -> int:
        """That of the earlier arm."""
        return int(self.arm.level)

    def effective_config(self) -> Effective:
        """The earlier arm's configuration, with its origin."""
        return self.arm.effective.with_fact(ORIGIN, dict(self.origin))

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Encode with the live engine."""
        return self.live.encode(prompt)

    def require(self, requests: Sequence[Request]) -> None:
        """Raise EngineError unless the earlier arm has every request with the same prompt, parameters and stream."""
        for request in requests:
            if request.id not in self.headers:
                raise EngineError(f"run {self.origin['run']} has no request {request.id}; {FIX}")
            other = _difference(self.headers[request.id], request)
            if other is not None:
                raise EngineError(f"run {self.origin['run']} recorded {request.id} with {other}; {FIX}")

    def memory(self) -> None:
        """Nothing is run."""

    def forget(self) -> None:
        """Nothing is run."""

    def generate(self, requests: Sequence[Request]) -> Iterator[Generation]:
        """Yield the earlier answers; requests that failed then fail again."""
        self.require(requests)
        asked = {request.id: request for request in requests}
        for result in chain(self.arm.requests, self.arm.failed, self.arm.refused):
            if result.request_id in asked:
                yield self._again(asked[result.request_id], result)

    def _again(self, request: Request, record: RequestRecord) -> Generation:
        facts = {**record.trace.header.facts, ORIGIN: self.origin["run"]}
        trace = encode(replace(record.trace, header=replace(record.trace.header, facts=facts)))
        return Generation(request, record.tokens, record.finish_reason, trace, record.text, record.latency_us, facts)


def _difference(then: TraceHeader, now: Request) -> str | None:
    parts = {
        "another prompt": then.prompt == now.prompt,
        "other sampling parameters or another seed": then.sampling == now.sampling,
        "another random stream": then.stream == now.stream,
    }
    return next((part for part, same in parts.items() if not same), None)
