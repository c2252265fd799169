"""The self-test's tables for the terminal, as JSON and as a page, and its own verdict.

The situation that each fault of the catalogue needs.

A run in which the situation does not occur cannot tell the fault from a clean engine. This module counts no
occurrences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.selftest.alarms import ENOUGH, NOMINAL, TOLERATED, Alarms
from audit.selftest.detect import BRIEFLY, POWER, Detection
from audit.selftest.scenarios import FIRST_CLEAN_SEED
from audit.selftest.work import SelfTestResult
from engine import faults


def by_situation(names: Iterable[str] = tuple(faults.REGISTRY)) -> Mapping[str, tuple[str, ...]]:
    """The faults of each situation, in the order of situations; situations without any are left out."""
    needed = {name: faults.load(name).situation for name in names}
    groups = {which: tuple(name for name, need in needed.items() if need == which) for which in CATALOGUE}
    return {which: group for which, group in groups.items() if group}


COLUMNS: Final = ("fault", "breaks", "tokens", "seeds", "caught by", "log-probabilities", "text")
SOUGHT_COLUMNS: Final = ("check", "fault", "tokens", "seeds")
SITUATION_COLUMNS: Final = ("situation", "faults", "caught", "missed")
FAMILY_COLUMNS: Final = ("arms", "number", "alarms", "checks")
UNIFORM_COLUMNS: Final = ("check", "tests", "p-values", "worst test", "excess", "adjusted p", "share <= 0.01")
Row = tuple[str, ...]


def failures(outcome: SelfTestResult) -> list[str]:
    """The reasons for failure; empty if the self-test passes."""
    missed = [detection.fault for detection in outcome.detections if not detection.sights["record"].caught]
    result = [f"missed: {', '.join(missed)}"] if missed else []
    idle = [item.check for item in outcome.sought if item.fault is None]
    if idle:
        result.append(f"checks that caught nothing: {', '.join(idle)}")
    alarms = outcome.alarms
    if alarms.too_many:
        result.append(f"{alarms.count} of {len(alarms.results)} clean arms raised an alarm, tolerated {TOLERATED:g}")
    if alarms.not_uniform:
        tests = ", ".join(item.test for item in alarms.not_uniform)
        result.append(f"too many small p-values on clean arms: {tests}")
    return result


def detection_rows(outcome: SelfTestResult) -> list[Row]:
    """One row per fault."""
    return [_row(detection) for detection in outcome.detections]


def _row(detection: Detection) -> Row:
    record = detection.sights["record"]
    return (
        detection.fault,
        faults.load(detection.fault).breaks,
        (str(record.tokens) if record.caught else f"missed at {record.tokens}"),
        f"{record.seen} of {record.seeds}",
        ", ".join(record.first) or "-",
        _outside(detection, "log-probabilities"),
        _outside(detection, "text"),
    )


def _outside(detection: Detection, view: str) -> str:
    sight = detection.sights[view]
    if sight.caught:
        return f"{sight.tokens}: {', '.join(sight.first)}"
    return f"not at {sight.tokens} ({sight.seen} of {sight.seeds})"


def situation_rows(outcome: SelfTestResult) -> list[Row]:
    """The faults that ran, by the situation that they need."""
    caught = {detection.fault: detection.sights["record"].caught for detection in outcome.detections}
    rows: list[Row] = []
    for situation, names in by_situation(caught).items():
        missed = [name for name in names if not caught[name]]
        rows.append((situation, str(len(names)), str(len(names) - len(missed)), _list(missed)))
    return rows


def family_rows(alarms: Alarms) -> list[Row]:
    """Alarms by family and sampling, then in total."""
    rows: list[Row] = []
    for name in dict.fromkeys((result.arm.family, result.arm.sampling) for result in alarms.results):
        chosen = [result for result in alarms.results if (result.arm.family, result.arm.sampling) == name]
        named = sorted({check for item in chosen for check in item.alarms})
        rows.append((", ".join(name), str(len(chosen)), str(sum(bool(item.alarms) for item in chosen)), _list(named)))
    return [*rows, ("all", str(len(alarms.results)), str(alarms.count), "")]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "-"


def uniform_rows(alarms: Alarms) -> list[Row]:
    """The worst test of every check."""
    rows: list[Row] = []
    for check in dict.fromkeys(item.test.partition(":")[0] for item in alarms.uniformity):
        tests = [item for item in alarms.uniformity if item.test.partition(":")[0] == check]
        worst = min(tests, key=lambda item: item.p)
        numbers = (f"{worst.excess:.3f}", f"{worst.adjusted:.2g}", f"{worst.below:.4f}")
        title = worst.test.partition(": ")[2] or "the check's own"
        rows.append((check, str(len(tests)), str(sum(test.n for test in tests)), title, *numbers))
    return rows


def rate_line(alarms: Alarms) -> str:
    """The family-wise rate and its limit."""
    count = len(alarms.results)
    rule = "the rate itself" if count >= ENOUGH else f"with fewer than {ENOUGH} arms its 99 % lower bound"
    return (
        f"{alarms.count} of {count} clean arms raised an alarm: {alarms.rate:.4f}, 99 % bounds {alarms.low:.4f} and "
        f"{alarms.high:.4f}; nominal {NOMINAL:g}; {rule} must not exceed {TOLERATED:g}"
    )


def document(outcome: SelfTestResult) -> dict[str, Any]:
    """The complete outcome as JSON, without the clean arms' individual p-values."""
    alarms, plan = outcome.alarms, outcome.plan
    return {
        "seeds": list(range(plan.limits.seeds)),
        "power": POWER,
        "detections": [_detection(detection) for detection in outcome.detections],
        "sought": [asdict(item) for item in outcome.sought],
        "clean": {
            "arms": len(alarms.results),
            "tokens": plan.clean_tokens,
            "first_seed": FIRST_CLEAN_SEED,
            "alarms": [
                asdict(result.arm) | {"checks": list(result.alarms)} for result in alarms.results if result.alarms
            ],
            "rate": alarms.rate,
            "rate_bounds": [alarms.low, alarms.high],
            "uniformity": [asdict(item) for item in alarms.uniformity],
        },
        "failures": failures(outcome),
    }


def _detection(detection: Detection) -> dict[str, Any]:
    fault = faults.load(detection.fault)
    views = {view: asdict(sight) | {"hits": dict(sight.hits)} for view, sight in detection.sights.items()}
    origin = {"breaks": fault.breaks, "situation": fault.situation, "upstream": fault.upstream}
    return {"fault": detection.fault, **origin, "views": views}


def page(outcome: SelfTestResult) -> str:
    """The tables as a Markdown page."""
    plan, alarms = outcome.plan, outcome.alarms
    seeds = f"0 to {plan.limits.seeds - 1}"
    failed = failures(outcome)
    parts = [
        "# Detection\n",
        "Generated by `audit selftest --markdown`; [the self-test](selftest.md) describes the arms and the tables.\n",
        _verdict(failed),
        "## Faults\n",
        f"{len(outcome.detections)} of the {len(faults.REGISTRY)} faults of the catalogue, seeds {seeds}. "
        f"`tokens` is the first size of arm at which at least {plan.limits.needed} of "
        f"{plan.limits.seeds} seeds are caught by a check; `also` lists checks that caught some seeds at this size, "
        "`missed` checks that ran and caught none. The last two columns see the same arms without the record: with "
        "log-probabilities, and as text; "
        f"they were tried up to {plan.limits.outside} tokens, or {min(BRIEFLY, plan.limits.outside)} over the bundled "
        "models and for faults that declare that text does not show them. A size was abandoned after too many missed "
        "seeds, without the record after two. Only the checks of the broken claim judged larger arms over the bundled "
        "models.\n",
        table((*COLUMNS[:2], "re-creates", *COLUMNS[2:5], "also", "missed", *COLUMNS[5:]), _page_rows(outcome)),
        *_sought(outcome),
        "## Situations\n",
        "What has to happen in a run before a fault can show, and how many of the faults that need it are caught with "
        "the record.\n",
        table(SITUATION_COLUMNS, situation_rows(outcome)),
        "## False alarms\n",
        f"{rate_line(alarms)}. Arms of {plan.clean_tokens} tokens, each with its own seed, "
        f"from {FIRST_CLEAN_SEED} on.\n",
        table(FAMILY_COLUMNS, family_rows(alarms)),
        "## Uniformity of p-values\n",
        "On the clean arms, against the uniform law, one-sided: `excess` is the largest excess of small p-values over "
        "the uniform law. The worst test of every check; the p-value is adjusted for all tests.\n",
        table(UNIFORM_COLUMNS, uniform_rows(alarms)),
    ]
    return "\n".join(parts)


def _verdict(failed: Sequence[str]) -> str:
    if not failed:
        return "The self-test passes.\n"
    return "The self-test fails:\n\n" + "\n".join(f"* {item}" for item in failed) + "\n"


def _sought(outcome: SelfTestResult) -> list[str]:
    """The table of checks that caught nothing in the search, and the faults they catch by themselves."""
    if not outcome.sought:
        return []
    rows = [
        (item.check, f"`{item.fault}`" if item.fault else "none", str(item.tokens), f"{item.seen} of {item.seeds}")
        for item in outcome.sought
    ]
    intro = (
        "Another check was faster on every fault above. Each of these checks was run by itself on faults of its own "
        "claim; the table gives the first fault that it catches and the size.\n"
    )
    return ["### Checks that need more\n", intro, table(SOUGHT_COLUMNS, rows)]


def _page_rows(outcome: SelfTestResult) -> list[Row]:
    rows: list[Row] = []
    for detection in outcome.detections:
        row, sight = _row(detection), detection.sights["record"]
        also = _list([f"{name} {sight.hits[name]}" for name in sight.others])
        upstream = faults.load(detection.fault).upstream
        rows.append((f"`{row[0]}`", row[1], upstream, *row[2:5], also, _list(sight.missed), *row[5:]))
    return rows


def table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """A table of a Markdown page."""
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"
