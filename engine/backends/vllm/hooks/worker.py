"""The worker's hook: an extension of vLLM's worker that records every step of its sampler.

Given to vLLM as `worker_extension_cls`; methods are reached by the public
`collective_rpc`. `specaudit_begin` checks the callables to wrap (`compat`) and wraps them if all match: the runner's
own method on the runner, verification in its module. A failure of the recording is stored and reported as a problem;
it never stops the engine. The hook copies the rows before the sampler runs, because the sampler works in place. V2's
adapter follows its interface but is untested on a device; it does not record q.
"""

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from engine.backends.vllm import compat as guard
from engine.backends.vllm.hooks import runner_facts, step
from engine.backends.vllm.hooks.runner_facts import batch_settings
from engine.backends.vllm.hooks.spool_writer import Reducer, SpoolWriter
from engine.backends.vllm.patches import repair
from engine.backends.vllm.worker_terms import terms_of


class WorkerLog:
    """The record of one worker: its file, the data held between two calls of the same step, and its problems."""

    def __init__(self) -> None:
        self.rows = False
        self.on = True
        self.count = 0
        self.seconds = 0.0
        self.law = step.DecisionRows()
        self.unmasked: Any = None
        """The step's rows before the grammars' masks; None in a step without a grammar."""
        self.offered: dict[str, list[int]] = {}
        """The last draft of each request, as the scheduler got it."""
        self._problems: list[str] = []
        self._writer: SpoolWriter | None = None

    def go_to(self, path: str, rows: bool, terms: Mapping[str, Any] | None) -> None:
        """Write to another file from now on, without raw rows, with them, or with what they are reduced to."""
        self.rows = rows
        if self._writer is not None:
            self._writer.close()
        self._writer = SpoolWriter(path, None if terms is None else Reducer(terms_of(terms)).reduced)

    def flush(self) -> None:
        """Wait until all steps are in the file or have failed."""
        if self._writer is not None:
            self._writer.flush()
            if self._writer.failure is not None:
                self.problem(self._writer.failure)

    @property
    def wanted(self) -> bool:
        """True if the step is recorded."""
        return self.on and self._writer is not None

    def see(self, logits: Any, q: Any, brief: bool) -> None:
        """Hold the processed rows of the drafted places or their argmax; copies, because verification may work in
        place.
        """
        began = time.perf_counter()
        try:
            if brief:
                self.law = replace(self.law, best=step.best_of(logits))
            else:
                self.law = replace(self.law, logits=logits.clone(), q=None if q is None else q.clone())
        except Exception as error:
            self.problem(f"step {self.count}: rows of drafted places are not known: {type(error).__name__}: {error}")
        self.seconds += time.perf_counter() - began

    def keep(self, make: Callable[[], step.StepBatch], raw: Any) -> None:
        """Write one step; a failure here is a problem of the record, not of the engine."""
        began = time.perf_counter()
        law, self.law = self.law, step.DecisionRows()
        try:
            assert self._writer is not None
            self._writer.put(step.frame_of(self.count, make(), raw, law))
        except Exception as error:
            self.problem(f"step {self.count} could not be recorded: {type(error).__name__}: {error}")
        self.count += 1
        self.seconds += time.perf_counter() - began

    def problem(self, text: str) -> None:
        """Keep the first few; one is enough to lower the evidence."""
        if len(self._problems) < 8 and text not in self._problems:
            self._problems.append(text)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems so far."""
        return tuple(self._problems)


class RecordingWorker:
    """Methods that vLLM mixes into its worker. `points_v1` and `points_v2` are the callables that are wrapped."""

    points_v1: ClassVar[Sequence[guard.HookPoint]] = guard.V1
    points_v2: ClassVar[Sequence[guard.HookPoint]] = guard.V2

    def specaudit_begin(self, repairs: str | None) -> dict[str, Any]:
        """Check and wrap the callables; returns the worker's facts."""
        import vllm

        runner: Any = self.model_runner  # type: ignore[attr-defined]  # the worker's own, which this is mixed into
        newer = runner_facts.is_v2(runner)
        points = self.points_v2 if newer else self.points_v1
        steps = WorkerLog()
        self.specaudit_steps = steps
        for problem in guard.problems(points, vllm.__version__):
            steps.problem(problem)
        if repairs is not None:
            repair(repairs, runner)
        if not steps.problems and self.rank == 0:  # type: ignore[attr-defined]  # as above
            (wrap_v2 if newer else wrap_v1)(runner, points, steps)
        return self.specaudit_facts()

    def specaudit_flush(self) -> None:
        """Return when every step so far is in its file."""
        self.specaudit_steps.flush()

    def specaudit_facts(self) -> dict[str, Any]:
        """The worker's facts, problems and recording cost; every step so far is then in its file."""
        steps: WorkerLog = self.specaudit_steps
        steps.flush()
        facts = runner_facts.facts_of(self.model_runner)  # type: ignore[attr-defined]  # as above
        return {**facts, "problems": list(steps.problems), "steps": steps.count, "seconds": steps.seconds}

    def specaudit_spool(self, path: str, rows: bool, terms: Mapping[str, Any] | None = None) -> None:
        """Write to this file from now on; see `WorkerLog.go_to`."""
        self.specaudit_steps.go_to(path, rows, terms)

    def specaudit_record(self, on: bool) -> None:
        """Pause or resume recording, to measure its cost."""
        self.specaudit_steps.on = on


def wrap_v1(runner: Any, points: Sequence[guard.HookPoint], steps: WorkerLog) -> None:
    """Wrap the runner's `_sample`, and the function that verifies in its module."""
    sample_point, verify_point, last_point, mask_point, draft_point = points
    original = getattr(runner, sample_point.path.rpartition(".")[2])

    def sample(logits: Any, spec_decode_metadata: Any) -> Any:
        if not steps.wanted or logits is None:
            return original(logits, spec_decode_metadata)
        masked = steps.unmasked is not None
        raw = _copied(logits, steps)
        if masked:
            offered = step.offered_behind(runner, spec_decode_metadata, steps.offered)
            steps.law = replace(steps.law, behind=step.q_behind(runner, spec_decode_metadata), offered=offered)
        output = original(logits, spec_decode_metadata)
        steps.keep(lambda: batch_v1(runner, spec_decode_metadata, output), raw)
        return output

    setattr(runner, sample_point.path.rpartition(".")[2], sample)
    _wrap(verify_point, lambda function: _verifying(function, verify_point, steps))
    _wrap(last_point, lambda function: _truncating(function, steps))
    _wrap(mask_point, lambda function: _masking(function, steps))
    _note_drafts(runner, draft_point, steps)


def _note_drafts(runner: Any, point: guard.HookPoint, steps: WorkerLog) -> None:
    """Hold the drafts that the scheduler gets, before it drops what a grammar forbids."""
    name = point.path.rpartition(".")[2]
    original = getattr(runner, name)

    def take_draft_token_ids() -> Any:
        drafts = original()
        if drafts is not None:
            steps.offered |= {
                request: [int(token) for token in tokens]
                for request, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
            }
        return drafts

    setattr(runner, name, take_draft_token_ids)


def _masking(function: Callable[..., Any], steps: WorkerLog) -> Callable[..., Any]:
    """The operation that applies the grammars' masks, in steps that have any."""

    def apply_grammar_bitmask(
        scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any, *args: Any, **named: Any
    ) -> Any:
        steps.unmasked = logits.clone() if steps.wanted else None
        return function(scheduler_output, grammar_output, input_batch, logits, *args, **named)

    return apply_grammar_bitmask


def _wrap(point: guard.HookPoint, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    text = guard.resolve(point)
    assert text.function is not None
    setattr(text.holder, point.path.rpartition(".")[2], functools.wraps(text.function)(wrapped(text.function)))


def _truncating(function: Callable[..., Any], steps: WorkerLog) -> Callable[..., Any]:
    """The last operation on rows from which tokens are drawn without a draft."""

    def apply_top_k_top_p(logits: Any, k: Any, p: Any, *args: Any, **named: Any) -> Any:
        processed = function(logits, k, p, *args, **named)
        if steps.wanted:
            steps.law = replace(steps.law, last=processed.clone())
        return processed

    return apply_top_k_top_p


def _verifying(function: Callable[..., Any], point: guard.HookPoint, steps: WorkerLog) -> Callable[..., Any]:
    """The function that verifies, whose first parameters are the point's."""

    def rejection_sample(*args: Any, **named: Any) -> Any:
        if steps.wanted:
            given = dict(zip(point.parameters, args, strict=False)) | named
            greedy = bool(getattr(given["sampling_metadata"], "all_greedy", False))
            steps.see(given["target_logits"], given["draft_probs"], brief=greedy and steps.rows)
        return function(*args, **named)

    return rejection_sample


def _copied(logits: Any, steps: WorkerLog) -> Any:
    """The rows before every mask, if they are wanted; the masks go into the step's law."""
    began = time.perf_counter()
    before, steps.unmasked = steps.unmasked, None
    steps.law = step.DecisionRows(masks=None if before is None else step.allowed_tokens(before, logits))
    raw = None if not steps.rows else logits.clone() if before is None else before
    steps.seconds += time.perf_counter() - began
    return raw


def batch_v1(runner: Any, metadata: Any, output: Any) -> step.StepBatch:
    """The requests of the step. Raises RowsMisplaced: the rows of a request are not contiguous."""
    count = runner.input_batch.num_reqs
    counts = tuple(metadata.num_draft_tokens) if metadata is not None else (0,) * count
    if metadata is not None:
        ends, end = metadata.bonus_logits_indices.tolist(), -1
        for drafted, last in zip(counts, ends, strict=True):
            end += drafted + 1
            if last != end:
                raise step.RowsMisplaced(f"the last row of a request is {last}, not {end}")
    return step.StepBatch(
        names=tuple(runner.input_batch.req_ids[:count]),
        discarded=tuple(runner.discard_request_mask.np[:count].tolist()),
        counts=counts,
        drafted=tuple(metadata.draft_token_ids.tolist()) if metadata is not None else (),
        sampled=output.sampled_token_ids.cpu().numpy(),
        settings=batch_settings(runner.input_batch),
    )


def wrap_v2(runner: Any, points: Sequence[guard.HookPoint], steps: WorkerLog) -> None:
    """Wrap the two samplers' calls on their classes: calls resolve there, not on the object."""
    for point in points:
        _wrap(point, lambda function: _sampling_v2(function, runner, steps))


def _sampling_v2(function: Callable[..., Any], runner: Any, steps: WorkerLog) -> Callable[..., Any]:
    def call(self: Any, logits: Any, input_batch: Any, *args: Any, **named: Any) -> Any:
        ours = self in (runner.sampler, runner.rejection_sampler)
        if not (ours and steps.wanted):
            return function(self, logits, input_batch, *args, **named)
        raw = _copied(logits, steps)
        output = function(self, logits, input_batch, *args, **named)
        steps.keep(lambda: batch_v2(input_batch, output), raw)
        return output

    return call


def batch_v2(input_batch: Any, output: Any) -> step.StepBatch:
    """The requests of the step. The first logits row of a request reads its last committed token, others drafts."""
    ends = input_batch.cu_num_logits_np.tolist()
    ids = input_batch.input_ids[input_batch.logits_indices].tolist()
    spans = list(itertools.pairwise(ends))
    sampled = output.sampled_token_ids.cpu().numpy().copy()
    lengths = output.num_sampled.tolist()
    for row, count in zip(sampled, lengths, strict=True):
        row[count:] = -1
    return step.StepBatch(
        names=tuple(input_batch.req_ids[: len(spans)]),
        discarded=tuple(count == 0 for count in lengths),
        counts=tuple(end - start - 1 for start, end in spans),
        drafted=tuple(token for start, end in spans for token in ids[start + 1 : end]),
        sampled=sampled,
    )
