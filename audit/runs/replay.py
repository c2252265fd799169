"""Runs the arms of a stored run again, from its record: the recorded prompts, parameters, order and batches.

Only our own engines can: another engine's batches are not on record. Reading arms, which follow recorded tokens, are
left out. Equal digests of the deciding rows mean equal bits; a record below level `scalars` holds none. The new digests
are made with the hash function of the recorded ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.errors import UserError
from audit.evidence.records import RequestRecord
from audit.runs.prepare import with_company
from audit.store import Store, StoredArm, StoredRun
from engine.backends import REGISTRY, open_backend
from engine.backends.engine_spec import Backend, EngineSpec, ModelSource
from engine.core.errors import EngineError
from engine.core.sequences import agreeing
from engine.core.types import FinishReason, Generation, Protocol, RecordLevel, Request, ToolOffer
from engine.record.requests import sampling_from_json
from engine.record.trace import Trace, decode
from engine.stream.interface import Action, FilterSpec, Side, StreamSpec

MODEL_KEYS: Final = ("dtype", "loader", "numerics", "device")


@dataclass(frozen=True, slots=True)
class ArmReplay:
    """One arm run again. Requests with the same tokens and text are `same`; digests are those of the deciding rows.

    first: the first request that differs, the token from which it does, and the recorded and the new token.
    """

    arm: str
    requests: int
    same: int
    digests: int
    same_digests: int
    first: str | None


@dataclass(frozen=True, slots=True)
class RunReplay:
    """A run again: its arms, and the arms that were left out with the reason."""

    arms: tuple[ArmReplay, ...]
    left_out: tuple[str, ...]

    @property
    def same(self) -> bool:
        """True if every token and every recorded digest came again."""
        return all((arm.same, arm.same_digests) == (arm.requests, arm.digests) for arm in self.arms)


def replay_run(store: Store, run: StoredRun, announce: Callable[[str], None]) -> RunReplay:
    """Run every decoding arm again, and compare.

    Raises:
        UserError: another engine decoded, a model has changed or is gone, or the record cannot be run again.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    backend_name = run.suite_document.get("backend", "native")
    if backend_name not in REGISTRY or not REGISTRY[backend_name].ours:
        raise UserError(f"run {run.ulid}: backend {backend_name} decoded it; only our own engines can run it again")
    try:
        backend = open_backend(backend_name, _models(run))
        recorded = {used.role: used.sha256 for used in run.artifacts}
        for model in backend.models():
            if recorded.get(model.name) != model.sha256:
                raise UserError(f"run {run.ulid}: {model.name} ({model.source}) has changed since the run; restore it")
        chosen = [arm for arm in run.arms if not arm.kind.reads and arm.effective.origin is None]
        arms = tuple(_arm(store, run, arm, backend, announce) for arm in chosen)
    except EngineError as error:
        raise UserError(f"run {run.ulid}: {error}") from error
    names = {arm.arm for arm in arms}
    return RunReplay(arms, tuple(arm.name for arm in run.arms if arm.name not in names))


def _models(run: StoredRun) -> dict[str, ModelSource]:
    """The models that the run recorded, with the loading options of its suite."""
    entries = run.suite_document.get("models", {})
    result = {}
    for used in run.artifacts:
        if used.kind in ("target", "draft"):
            entry = entries.get(used.role, {})
            given = {} if isinstance(entry, str) else {key: entry[key] for key in MODEL_KEYS if key in entry}
            result[used.role] = ModelSource(used.name, revision=used.revision, **given)
    return result


def _arm(store: Store, run: StoredRun, arm: StoredArm, backend: Backend, announce: Callable[[str], None]) -> ArmReplay:
    announce(arm.name)
    record = store.load_arm(run.ulid, arm.name)
    before = {request.request_id: request for request in (*record.requests, *record.refused)}
    plan, calls = _plan(arm.spec), list(_calls(before.values()))
    engine = backend.arm(plan)
    # a served arm has neither parameters of its own nor company
    if "sampling" in arm.spec:
        # the neighbours of a mixed batch follow from the arm's own parameters
        engine = with_company(engine, plan, sampling_from_json(arm.spec["sampling"]))
    engine.forget()
    made = {generation.request.id: generation for requests in calls for generation in engine.generate(requests)}
    pairs = [(item, made[name]) for name, item in before.items()]
    counts = [_digests(old.trace, decode(new.trace)) for old, new in pairs]
    different = [(old, new) for old, new in pairs if (old.tokens, old.text) != (new.tokens, new.text)]
    return ArmReplay(
        arm.name,
        len(pairs),
        len(pairs) - len(different),
        sum(recorded for recorded, _ in counts),
        sum(same for _, same in counts),
        _first(different),
    )


def _digests(old: Trace, new: Trace) -> tuple[int, int]:
    """The recorded digests, and those that are the same again."""
    both = zip(old.logits_digest.tolist(), new.logits_digest.tolist(), strict=False)
    return len(old.logits_digest), sum(a == b for a, b in both)


def _first(different: Sequence[tuple[RequestRecord, Generation]]) -> str | None:
    if not different:
        return None
    old, new = different[0]
    at = agreeing(old.tokens, new.tokens)
    tokens = [item[at] if at < len(item) else "none" for item in (old.tokens, new.tokens)]
    return f"{old.request_id}: token {at} was {tokens[0]}, now it is {tokens[1]}"


def _plan(spec: Mapping[str, Any]) -> EngineSpec:
    """The inverse of what a run writes about an arm."""
    return EngineSpec(
        protocol=Protocol(spec["verifier"]),
        proposer=spec["proposer"],
        gamma=spec["gamma"],
        draft=spec["draft"],
        options=spec["options"],
        rows=spec["rows"],
        level=RecordLevel(spec["record"]),
        fault=spec["fault"],
        others=tuple(spec["other_drafts"]),
        verifier_options=spec["verifier_options"],
        engine=spec.get("engine", {}),
        beside=sampling_from_json(spec["beside"]) if "beside" in spec else None,
        cancel_beside=int(spec.get("cancel_beside", 0)),
        mixed=bool(spec.get("mixed")),
        stream=_stream(spec["stream"]) if "stream" in spec else None,
    )


def _stream(document: Mapping[str, Any]) -> StreamSpec:
    return StreamSpec(
        tuple(
            FilterSpec(item["kind"], Action(item["action"]), Side(item["side"]), item["rules"])
            for item in document["filters"]
        )
    )


def _calls(requests: Iterable[RequestRecord]) -> Iterator[list[Request]]:
    """The requests of each call to the engine, in the order in which the loop admitted them.

    A request that a filter refused was in no batch; it comes with the first call.
    """
    calls: dict[str, list[RequestRecord]] = {}
    refused = []
    for request in requests:
        facts = request.trace.header.facts
        if "call" in facts:
            calls.setdefault(facts["call"], []).append(request)
        elif request.finish_reason is FinishReason.FILTER:
            refused.append(request)
        else:
            raise UserError(f"request {request.request_id}: its record does not say in which batch it ran")
    for number, batch in enumerate(calls.values() if calls else [[]]):
        batch.sort(key=lambda item: (item.trace.header.facts["round"], item.trace.header.facts["row"]))
        yield [_request(item) for item in (*batch, *(refused if number == 0 else ()))]


def _request(record: RequestRecord) -> Request:
    header = record.trace.header
    tools = header.facts.get("tools")
    offer = None if tools is None else ToolOffer(tuple(tools["offered"]), tools["choice"])
    return Request(record.request_id, header.prompt, header.sampling, header.stream, offer)
