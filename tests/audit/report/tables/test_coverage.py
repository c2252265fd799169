"""The line of coverage per arm."""

from __future__ import annotations

from dataclasses import replace

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.expected import ALWAYS, CORE, ONCE, UNPROMISED
from audit.evidence.records import ArmKind, Level
from audit.report.tables.coverage import coverage_lines
from audit.store.base.values import ArmCounts, StoredArm, StoredCoverage
from engine.record.effective import Effective

CHAIN = StoredArm("chain", ArmKind.CANDIDATE, Level.L4, True, {}, Effective(), ArmCounts(40, 400, 400))


def test_the_line_counts_what_the_latest_look_saw():
    early, late = (StoredCoverage("chain", name, "recovered_token", n, n, 10) for name, n in (("law", 12), ("a", 40)))
    assert coverage_lines([CHAIN], [late, early]) == ["coverage of chain: 40 rejections, 0 drafts kept whole"]
    assert coverage_lines([CHAIN], [early, late]) == coverage_lines([CHAIN], [late, early])


def test_the_line_ends_with_what_never_occurred_and_has_no_floor():
    rows = [StoredCoverage("chain", name, situation, n, n, None) for name, situation, n in NEVER]
    (line,) = coverage_lines([CHAIN], [StoredCoverage("chain", "law", "recovered_token", 40, 40, 10), *rows])
    assert line == "coverage of chain: 40 rejections, 0 drafts kept whole; not met: end_in_draft, long_prompt"


NEVER = (
    *(("law", "long_prompt", 0), ("replay", "long_prompt", 0), ("law", "end_in_draft", 0)),
    *(("law", "likely_token", 3), ("law", "tree_deep", 0)),
)


def test_the_line_counts_the_requests_that_were_added():
    arm = replace(CHAIN, counts=ArmCounts(40, 400, 400, directed=9, directed_output=20))
    (line,) = coverage_lines([arm], [StoredCoverage("chain", "law", "recovered_token", 40, 40, 10)])
    assert line == "coverage of chain: 40 rejections, 0 drafts kept whole; 9 directed requests beside 40"


def test_what_is_without_a_floor_is_what_the_settings_do_not_promise():
    """Every situation that a record shows has a floor, depends on parameters, or is in the list."""
    by_settings = {*CORE, *ONCE, "row_reused", "mixed_lengths", "mixed_parameters", "tree_branch"}
    by_parameters = {"penalty_in_draft", "ban_in_draft", "min_tokens_in_draft", "stop_string_in_draft"}
    by_parameters |= {"grammar", "filter"}
    # by the memory of a foreign engine, and by neighbours that are cancelled
    by_parameters |= {"preempted", "cancelled_neighbour"}
    recognised = {name for name, each in CATALOGUE.items() if each.recognise is not None}
    assert recognised == by_settings | by_parameters | {*UNPROMISED, *ALWAYS}
