"""The comparison with the peer runs without it, and its page is about the faults that it names."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from audit.evidence.records import ArmKind
from engine import faults
from tests.bench.growing import Growing
from tests.bench.two_sample_peer import (
    COLUMNS,
    FAULTS,
    PAGE,
    PLAIN,
    PROMPTS,
    SAMPLING,
    Found,
    Setting,
    alarm_cells,
    arms_of,
    endpoint,
    kept,
    kept_alarms,
    main,
    measured_when,
    merged,
    page,
    sample_of,
    seen_by_ours,
    seen_by_theirs,
    seen_through_an_endpoint,
)

pytestmark = pytest.mark.slow


def test_the_comparison_runs(tmp_path):
    out, numbers = tmp_path / "page.md", tmp_path / "numbers.json"
    asked = ["--seeds", "1", "--most", "256", "--only", "accepts_everything", "--out", out, "--json", numbers]
    result = CliRunner().invoke(main, [str(each) for each in [*asked, "--clean", "1"]])
    assert result.exit_code == 0, result.output
    assert "| `accepts_everything` | 32 (" in out.read_text()
    assert "`token_law` calls 0 of 1 clean arms of 256 tokens a fault" in " ".join(out.read_text().split())
    found = json.loads(numbers.read_text())
    assert found["accepts_everything"]["battery"]["tokens"] == 32
    assert found["no fault"]["battery"]["tokens"] is None


def test_the_page_has_a_row_for_each_fault():
    text = PAGE.read_text()
    assert len(FAULTS) == 10
    assert all(f"| `{name}` | " in text for name in FAULTS)


def test_both_arms_give_as_many_responses_to_each_prompt():
    sample = sample_of(arms_of("stale_q", 2, Growing(PLAIN, None, 2, prompts=PROMPTS)), 512)
    assert sample.tokens.shape == (32, SAMPLING.max_new_tokens)
    for second in (False, True):
        assert [int(sum(sample.prompt[sample.second == second] == prompt)) for prompt in range(PROMPTS)] == [4] * 4


def test_text_shows_a_gross_fault_and_no_clean_arm():
    target = Growing(PLAIN, None, 2, prompts=PROMPTS)
    assert seen_by_ours(sample_of(arms_of("accepts_everything", 2, target), 2048), 2)
    assert not seen_by_ours(sample_of(arms_of(None, 2, target), 2048), 2)


def test_the_target_alone_is_that_of_the_candidate():
    """Same rows after the same prompt, other random numbers."""
    arms = arms_of(None, 2, Growing(PLAIN, None, 2, prompts=PROMPTS))
    candidate, target = (each.grown(32).candidate.requests[0].trace for each in (arms.recorded, arms.target))
    assert candidate.header.prompt == target.header.prompt
    assert candidate.logits_digest[0] == target.logits_digest[0]
    assert ArmKind.ANCHOR in arms.recorded.grown(32).companions


def test_the_peer_is_asked_for_its_hamming_test():
    asked = []

    def peer(sample, kind, permutations):
        asked.append((kind, permutations))
        return 0.0, 1.0

    assert seen_by_theirs(peer, None, 99)
    assert asked == [("mmd_hamming", 99)]


def test_tokens_needed_are_those_from_which_on_the_power_is_kept():
    assert Found({32: (18, 20), 64: (17, 20), 128: (19, 20)}, "law").told() == "128 (law)"
    assert Found({32: (0, 20), 64: (9, 10)}).tokens == 64
    assert Found({32: (20, 20), 64: (3, 10)}).told() == "> 64 (3 of 10)"


def test_the_faults_are_of_the_catalogue_and_have_scripted_arenas():
    assert all(faults.load(name).scenario.models == "scripted" for name in FAULTS)


@pytest.mark.parametrize(("fault", "tokens"), [("target_rows_shifted", 64), ("argmax_draft_soft_q", 256)])
def test_a_sample_of_the_faults_is_seen_through_an_endpoint(fault, tokens):
    """Four seeds of the table's column of `token_law`."""
    assert sum(seen_through_an_endpoint(endpoint(fault, seed), tokens) for seed in range(4)) == 4


def test_a_sample_of_the_clean_arms_raises_no_alarm():
    assert not any(seen_through_an_endpoint(endpoint(None, 1000 + seed), 64) for seed in range(8))


def test_columns_that_are_kept_are_those_of_the_page():
    cells = {"stale_q": dict.fromkeys(COLUMNS, "64"), "kv_residue": {"token_law": "> 4096 (1 of 10)"}}
    false = alarm_cells({"battery": Found({64: (0, 20)}), "token_law": Found({64: (1, 20), 128: (0, 20)})})
    text = page(cells, false, Setting(20, 4096, 99), "0", "`token_law` calls nothing.")
    assert merged(kept(text), {})["stale_q"] == cells["stale_q"]
    assert kept(text)["kv_residue"]["token_law"] == "> 4096 (1 of 10)"
    assert kept_alarms(text) == false


def test_the_page_says_when_and_at_which_load_a_column_was_measured():
    one = measured_when(("stale_q",), datetime(2026, 11, 26, tzinfo=UTC), 9.3, (1.0, 2.9))
    assert "last measured on 2026-11-26: the rows of `stale_q`, and both" in one
    assert "9 minutes of one core, at a load of 1.0 to 2.9 on" in one
    assert "all rows" in measured_when(FAULTS, datetime(2026, 11, 26, tzinfo=UTC), 60.0, (1.0,))
    assert "last measured on 20" in " ".join(PAGE.read_text().split())
