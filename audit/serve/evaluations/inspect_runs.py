"""An evaluation of Inspect through the provider `specaudit`, as scored samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inspect_ai
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import get_model
from inspect_ai.scorer import value_to_float

from audit.errors import CannotDecide
from audit.serve.evaluations.comparison import EvaluatedArm, EvaluationPass, ScoredRun, ScoredSample


@dataclass(frozen=True, slots=True)
class InspectTasks:
    """Tasks to evaluate: files of Inspect, `limit` samples of each, with settings of generation.

    logs: a folder for Inspect's own logs.
    """

    files: tuple[str, ...]
    limit: int | None = None
    epochs: int | None = None
    settings: Mapping[str, Any] | None = None
    logs: Path | None = None


def evaluated(options: Mapping[str, Any], tasks: InspectTasks, which: EvaluationPass) -> ScoredRun:
    """Evaluate, and close the run.

    Raises:
        UserError: a wrong option.
        CannotDecide: an evaluation did not end.
    """
    given = {name: value for name, value in options.items() if name not in ("model", "seed")}
    given |= {"speculation": which.speculation, "seed": which.seed(options["seed"])}
    model = get_model(f"specaudit/{options['model']}", memoize=False, **given)
    try:
        logs = inspect_ai.eval(
            list(tasks.files),
            model=model,
            limit=tasks.limit,
            epochs=tasks.epochs,
            log_dir=str((tasks.logs or Path("logs")) / which),
            display="none",
            **(tasks.settings or {}),
        )
    finally:
        model.api.recorded.close()
    broken = [log for log in logs if log.status != "success"]
    if broken:
        why = broken[0].error.message if broken[0].error else broken[0].status
        raise CannotDecide(f"task {broken[0].eval.task} (evaluation {which}): {why}")
    facts = model.api.recorded.facts
    return ScoredRun(
        EvaluatedArm(facts["run"], facts["arm"]), tuple(sample for log in logs for sample in _samples(log))
    )


def _samples(log: EvalLog) -> Iterator[ScoredSample]:
    for sample in log.samples or ():
        yield ScoredSample(log.eval.task, str(sample.id), dict(_scores(sample)), tuple(_requests(sample)))


def _scores(sample: EvalSample) -> Iterator[tuple[str, float]]:
    """The scores with one number, where Inspect's words for correct and incorrect are 1 and 0."""
    number = value_to_float()
    for scorer, score in (sample.scores or {}).items():
        if isinstance(score.value, str | int | float):
            yield scorer, number(score.value)


def _requests(sample: EvalSample) -> Iterator[str]:
    """The records of all answers of a sample, also those before its last."""
    for event in sample.events:
        if event.event == "model" and event.output.metadata and "audit" in event.output.metadata:
            yield event.output.metadata["audit"]["request"]
