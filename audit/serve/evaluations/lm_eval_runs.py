"""An evaluation of lm-evaluation-harness through the model `specaudit`, as scored samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from audit.errors import UserError
from audit.serve.evaluations.comparison import EvaluatedArm, EvaluationPass, ScoredRun, ScoredSample
from audit.serve.evaluations.lm_eval_model import SpecauditLM


@dataclass(frozen=True, slots=True)
class HarnessTasks:
    """Evaluated tasks: of the harness, or of the folder `include`; `limit` samples of each.

    out: a folder for the harness's own results and samples.
    """

    names: tuple[str, ...]
    include: str | None = None
    limit: int | None = None
    fewshot: int | None = None
    out: Path | None = None


def evaluated(options: Mapping[str, Any], tasks: HarnessTasks, which: EvaluationPass) -> ScoredRun:
    """Evaluate, and close the run. Raises UserError: a wrong option, or the harness knows no such task."""
    manager = _manager(tasks)
    model = SpecauditLM(**{**options, "speculation": which.speculation, "seed": which.seed(options["seed"])})
    try:
        tracker = None if tasks.out is None else EvaluationTracker(output_path=str(tasks.out / which))
        results = lm_eval.simple_evaluate(
            model=model,
            tasks=list(tasks.names),
            task_manager=manager,
            limit=tasks.limit,
            num_fewshot=tasks.fewshot,
            evaluation_tracker=tracker,
        )
    finally:
        model.close()
    samples = results.pop("samples")
    # read first: the harness rewrites the arguments of samples when it saves them
    scored = tuple(_samples(samples))
    if tracker is not None:
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, listed in samples.items():
            tracker.save_results_samples(task_name=task, samples=listed)
    facts = model.recorded.facts
    return ScoredRun(EvaluatedArm(facts["run"], facts["arm"]), scored)


def _manager(tasks: HarnessTasks) -> TaskManager:
    """The tasks of the folder alone, if they are all there: the harness's own take many seconds to list."""
    if tasks.include is not None:
        own = TaskManager(include_path=tasks.include, include_defaults=False)
        if set(tasks.names) <= set(own.all_tasks):
            return own
    manager = TaskManager(include_path=tasks.include)
    unknown = [name for name in tasks.names if name not in manager.all_tasks]
    if unknown:
        raise UserError(f"--task {unknown[0]}: the harness knows no such task; name its folder with --include-path")
    return manager


def _samples(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[ScoredSample]:
    for task, listed in samples.items():
        for sample in listed:
            requests = tuple(name["request"] for arguments in sample["arguments"] for name in arguments[-1]["audit"])
            yield ScoredSample(task, str(sample["doc_id"]), dict(_scores(sample)), requests)


def _scores(sample: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers among a sample's metrics; others are aggregated by the harness alone."""
    for metric in sample["metrics"]:
        if isinstance(sample[metric], Real):
            yield f"{metric},{sample['filter']}", float(sample[metric])
