"""Every fault in a default suite: what a user gets who writes the fault's proposer, rule and parameters, and no more.

Batch size, neighbours, record level, checks and floors of coverage are the suite's defaults; the detection of
`audit.selftest.detect` has an arm made for the fault and all checks instead. Prompts have no default: the bundled
models read the packaged ones, scripted models random letters. Cannot tell how often a user's own prompts bring the
fault's situation about.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from audit.checks.battery import default_checks
from audit.evidence.coverage.context import CHUNK
from audit.evidence.coverage.count import count
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.runs.judge import ArmJudgement, arm_exit_code, judge_arm
from audit.selftest.detect import BRIEFLY, DetectionLimits
from audit.selftest.run_arm import alone, gather
from audit.selftest.scenarios import cases_of, requests_of, suite_of
from audit.suite.spec import Case, Suite
from engine import faults
from engine.faults.interface import PromptLength, Scenario

SIZES: Final = (1024, 4096, 16_384)
"""Tokens per arm; an arm of the smallest size has 16 requests, two for each row of its batch."""
BATCH_SIZE: Final = 8
PROMPT: Final = PromptLength(3, 24)
"""Letters of a prompt: shorter and longer than a block of a paged cache."""
LONG_EVERY: Final = 4
LONG: Final = PromptLength(CHUNK + 4, CHUNK + 12)
"""Letters of every fourth prompt for scripted models, whose context is long: engines read them in two chunks."""
COLUMNS: Final = ("fault", "situation", "occurred", "tokens", "caught by", "undecided", "exit")
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefaultDetection:
    """One fault in a default suite, at the last size tried.

    occurred: the fewest occurrences of the fault's situation in a seed, counted without the fault, which may do
    something else in their place; None if no record shows the situation.
    verdicts: seeds by check and verdict.
    codes: seeds by the exit code that `audit run` would have.
    """

    fault: str
    caught: bool
    tokens: int
    seeds: int
    occurred: int | None
    verdicts: Mapping[str, Mapping[str, int]]
    codes: Mapping[int, int]

    @property
    def caught_by(self) -> tuple[str, ...]:
        """The checks that called a seed a fault."""
        return tuple(name for name, counts in self.verdicts.items() if counts.get(Verdict.FAULT))

    @property
    def undecided(self) -> tuple[str, ...]:
        """The checks that ended undecided for a seed."""
        return tuple(name for name, counts in self.verdicts.items() if counts.get(Verdict.INCONCLUSIVE))


def default_suite(scenario: Scenario, fault: str | None, seed: int, tokens: int) -> Suite:
    """A suite of one arm with the scenario's proposer, rule, sampling and models, and the defaults of all else."""
    usual = replace(scenario, rows=BATCH_SIZE, beside=None, prompt=PROMPT, shared=0)
    bare = suite_of(usual, fault, seed, tokens, ())
    suite = replace(
        bare, arms=tuple(replace(arm, checks={name: {} for name in _checks(bare, scenario)}) for arm in bare.arms)
    )
    return replace(suite, samples=1, cases=_cases(usual, requests_of(usual, tokens), seed), mixed=True)


def _checks(suite: Suite, scenario: Scenario) -> tuple[str, ...]:
    (plan,) = (arm.plan for arm in plan_arms(suite) if arm.kind is ArmKind.CANDIDATE)
    return default_checks(suite.backend, plan, scenario.sampling, suite.models["target"], calls=scenario.tools)


def _cases(scenario: Scenario, count: int, seed: int) -> tuple[Case, ...]:
    """The self-test's prompts, every fourth of them long if they are made for scripted models."""
    usual, long = cases_of(scenario, count, seed), cases_of(replace(scenario, prompt=LONG), count, seed)
    return tuple(long[i] if i % LONG_EVERY == LONG_EVERY - 1 else case for i, case in enumerate(usual))


def detect_by_default(name: str, limits: DetectionLimits) -> DefaultDetection:
    """Try sizes until the default checks catch the fault in enough seeds, or sizes run out."""
    heavy = faults.load(name).scenario.models != "scripted"
    sizes = [tokens for tokens in SIZES if tokens <= limits.record and not (heavy and tokens > BRIEFLY)]
    detection = _at_size(name, (sizes or [limits.record])[0], limits)
    for tokens in sizes[1:]:
        if not detection.caught:
            detection = _at_size(name, tokens, limits)
    return detection


def _at_size(name: str, tokens: int, limits: DetectionLimits) -> DefaultDetection:
    fault = faults.load(name)
    verdicts: dict[str, Counter[str]] = {}
    codes: Counter[int] = Counter()
    occurred: list[int | None] = []
    for seed in range(limits.seeds):
        suite = default_suite(fault.scenario, name, seed, tokens)
        judged = judged_suite(suite)
        clean = replace(suite, arms=tuple(replace(arm, fault=None, checks={}) for arm in suite.arms))
        occurred.append(count(alone(clean).candidate, {}).occurred.get(fault.situation))
        codes[arm_exit_code(judged.results.values())] += 1
        for check, result in judged.results.items():
            verdicts.setdefault(check, Counter())[result.verdict] += 1
    known = [number for number in occurred if number is not None]
    least = min(known) if known else None
    return DefaultDetection(name, codes[1] >= limits.needed, tokens, limits.seeds, least, verdicts, codes)


def judged_suite(suite: Suite) -> ArmJudgement:
    """Run a suite of one arm in memory and judge it as `audit run` does."""
    (arm,) = suite.arms
    return judge_arm(gather(suite), arm.judged)


def rows(detections: Sequence[DefaultDetection]) -> list[Row]:
    """One row per fault."""
    return [
        (
            detection.fault,
            faults.load(detection.fault).situation,
            "not recorded" if detection.occurred is None else str(detection.occurred),
            str(detection.tokens),
            ", ".join(detection.caught_by) or "-",
            ", ".join(detection.undecided) or "-",
            ", ".join(map(str, sorted(detection.codes))),
        )
        for detection in detections
    ]


def failures(detections: Sequence[DefaultDetection]) -> list[str]:
    """The faults that a default suite does not catch, those that pass apart."""
    missed = [detection for detection in detections if not detection.caught]
    passed = [result.fault for result in missed if result.codes.get(0)]
    undecided = [result.fault for result in missed if not result.codes.get(0)]
    outcome = [f"passed: {', '.join(passed)}"] if passed else []
    return outcome + ([f"undecided: {', '.join(undecided)}"] if undecided else [])


def document(detections: Sequence[DefaultDetection]) -> dict[str, Any]:
    """All counts as JSON."""
    return {"detections": [_entry(detection) for detection in detections], "failures": failures(detections)}


def _entry(detection: DefaultDetection) -> Mapping[str, Any]:
    counts = {
        "verdicts": {name: dict(item) for name, item in detection.verdicts.items()},
        "codes": dict(detection.codes),
    }
    return (
        asdict(detection)
        | counts
        | {"situation": faults.load(detection.fault).situation, "caught_by": detection.caught_by}
    )
