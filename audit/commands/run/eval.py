"""`audit eval`: an evaluation without speculation and with it, scores and checks of answers side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from audit.errors import needs
from audit.serve.limits import GAMMA
from audit.terminal.options import json_option, store_option, wide_option
from audit.terminal.tables import cell, echo_json, echo_rows
from audit.text.printer import echo, note

if TYPE_CHECKING:
    from audit.serve.evaluations.comparison import EvaluationComparison, EvaluationPass, ScoreDifference, ScoredRun

F = TypeVar("F", bound=Callable[..., Any])
SCORES: Final = ("task", "metric", "samples", "off", "on", "difference", "interval")
CHECKS: Final = ("answers", "check", "verdict", "n", "what was found")
CONTROL: Final = ("task", "metric", "samples", "off", "off again", "difference", "interval")
LEVELS: Final = ("tokens", "scalars", "topk", "full")
WORDS: Final = {"control": ", under other seeds"}
COUNT: Final = click.IntRange(min=1)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group("eval")
def command() -> None:
    """Run an evaluation twice, without speculation and with it, and compare its scores and its answers.

    With --control a third evaluation, without speculation and under other seeds, shows how much scores differ anyway.

    Exit code 0: every check that applies is certified and no score differs; 1: a check found a fault, or the interval
    of a score's difference excludes 0; 3: undecided.
    """


def model_options(function: F) -> F:
    """MODEL and the options that say what drafts."""
    for option in (
        click.argument("model"),
        click.option("--draft", metavar="SOURCE", help="The draft: a folder, .gguf file, bundled:NAME or hf:ORG/NAME."),
        click.option("--proposer", metavar="KIND", help="What drafts. Default: draft_model with --draft."),
        click.option("--gamma", type=COUNT, default=GAMMA, show_default=True, help="Most drafted tokens per step."),
        click.option("--arm", metavar="NAME", help="The arm, if MODEL is a suite; needed if it has several."),
        click.option("--rows", type=COUNT, help="Answers decoded at once."),
        click.option("--record", type=click.Choice(LEVELS), default="scalars", show_default=True, help="Record level."),
        click.option("--seed", type=click.IntRange(0), default=0, help="Changes the seeds of all requests."),
        click.option("--threads", type=COUNT, default=1, show_default=True, help="Threads of torch."),
        click.option("--limit", type=COUNT, help="Most samples of each task."),
        click.option(
            "--control", is_flag=True, help="Also run without speculation under other seeds, to compare with."
        ),
    )[::-1]:
        function = option(function)
    return function


@command.command("lm-eval")
@model_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="A task; may be repeated.")
@click.option("--include-path", metavar="FOLDER", help="A folder with tasks of your own.")
@click.option("--num-fewshot", type=click.IntRange(0), help="Examples in each prompt.")
@click.option(
    "--out",
    type=FOLDER,
    help="Where the harness writes its results and samples: FOLDER/off, FOLDER/on, FOLDER/control.",
)
@json_option
@wide_option
@store_option
@click.pass_context
def lm_eval(
    ctx: click.Context,
    /,
    tasks: tuple[str, ...],
    include_path: str | None,
    num_fewshot: int | None,
    limit: int | None,
    control: bool,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run tasks of lm-evaluation-harness on MODEL."""
    with needs("lm-eval"):
        from audit.serve.evaluations.lm_eval_runs import HarnessTasks, evaluated
    given = HarnessTasks(tasks, include_path, limit, num_fewshot, out)
    _compare(ctx, options["store"], lambda which: evaluated(options, given, which), control, as_json)


@command.command("inspect")
@model_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="FILE", help="A task file; may be repeated.")
@click.option("--epochs", type=COUNT, help="Repetitions of each sample.")
@click.option("--max-tokens", type=COUNT, help="Most tokens of an answer. Default: what fits.")
@click.option("--temperature", type=click.FloatRange(0), help="Of all answers. Default: the task's, else 1.")
@click.option(
    "--log-dir",
    type=FOLDER,
    default="logs",
    show_default=True,
    help="Inspect's logs: FOLDER/off, FOLDER/on, FOLDER/control.",
)
@json_option
@wide_option
@store_option
@click.pass_context
def inspect(
    ctx: click.Context,
    /,
    tasks: tuple[str, ...],
    epochs: int | None,
    max_tokens: int | None,
    temperature: float | None,
    limit: int | None,
    control: bool,
    log_dir: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Run tasks of Inspect on MODEL."""
    with needs("inspect"):
        from audit.serve.evaluations.inspect_runs import InspectTasks, evaluated
    chosen = {"max_tokens": max_tokens, "temperature": temperature}
    settings = {name: value for name, value in chosen.items() if value is not None}
    given = InspectTasks(tasks, limit, epochs, settings, log_dir)
    _compare(ctx, options["store"], lambda which: evaluated(options, given, which), control, as_json)


def _compare(
    ctx: click.Context, store_url: str, run: Callable[[EvaluationPass], ScoredRun], control: bool, as_json: bool
) -> None:
    from audit.serve.evaluations.comparison import EvaluationPass, compared
    from audit.store import Store

    runs = {}
    for which in EvaluationPass:
        if control or which is not EvaluationPass.CONTROL:
            note(f"evaluating with speculation {which.speculation}{WORDS.get(which.value, '')}")
            runs[which] = run(which)
    with Store.open(store_url, create=False, read_only=True) as store:
        comparison = compared(
            store, runs[EvaluationPass.OFF], runs[EvaluationPass.ON], runs.get(EvaluationPass.CONTROL)
        )
    if as_json:
        echo_json(comparison.document())
    else:
        _show(comparison)
    ctx.exit(comparison.exit_code)


def _show(comparison: EvaluationComparison) -> None:
    echo_rows(SCORES, _rows(comparison.scores))
    confidence = f"{100 * comparison.confidence:g} % confidence"
    echo(f"difference: on minus off, paired; all intervals together hold with {confidence}")
    if comparison.control is not None:
        echo("")
        echo_rows(CONTROL, _rows(comparison.control.scores))
        echo("control: off again minus off, under other seeds: by how much scores differ without speculation")
    answers = comparison.answers
    echo("")
    echo_rows(
        CHECKS,
        [
            (item.answers, item.check, item.result.verdict, item.result.n, item.result.summary)
            for item in answers.judged
        ],
    )
    echo("")
    share = f"at most {100 * answers.upper:.3g} % of answers differ (99 % confidence)"
    echo(f"answers: {answers.pairs} pairs, {len(answers.changed)} with other tokens; {share}")
    if answers.unpaired:
        echo(f"{answers.unpaired} answers have no partner: only one of the evaluations asked for them")
    echo(f"samples with another answer and the same scores, which scores do not see: {comparison.unseen}")
    control = f", control {cell(comparison.control.arm.run)}" if comparison.control else ""
    echo(f"runs: off {cell(comparison.off.run)}, on {cell(comparison.on.run)}{control}")
    echo(comparison.words)


def _rows(scores: Sequence[ScoreDifference]) -> list[tuple[Any, ...]]:
    return [
        (score.task, score.metric, score.samples, score.off, score.on, score.difference, _interval(score.interval))
        for score in scores
    ]


def _interval(interval: Any) -> str:
    return "not within [0, 1]" if interval is None else f"[{interval.low:+.4f}, {interval.high:+.4f}]"
