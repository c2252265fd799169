"""Pages of counters as numbers by model: names, labels, histograms, and pages that are none."""

import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from audit.watch.growth import FIRST, GAUGES, NO_CLOCK, OFF, TORN, reading
from engine.backends.openai.server_counters import ServerCounters, by_model, counters_of, latency
from tests.audit.watch.metrics_server import SGLANG, vllm_page

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)


def only(page):
    (found,) = by_model(page).values()
    return found


def grown(before, after, seconds=60.0):
    return reading("m", AT + timedelta(seconds=seconds), only(after), only(before), AT)


def test_a_page_of_vllm_is_read_by_model_and_engines_are_added():
    page = vllm_page(10, 20, "a", requests=5, aborted=1) + vllm_page(1, 4, "a").replace('engine="0"', 'engine="1"')
    found = by_model(page + vllm_page(7, 7, "b"))
    assert set(found) == {"a", "b"}
    assert (found["a"].drafts, found["a"].drafted, found["a"].accepted) == (11, 44, 24)
    assert (found["a"].requests, found["a"].errors, found["a"].draft_length) == (6, 1, 4)
    assert counters_of(json.loads(found["a"].to_json())) == found["a"]


def test_names_of_models_are_unescaped_and_cut():
    assert set(by_model(vllm_page(1, 1, 'we\\"ird\\\\\\n'))) == {'we"ird\\\n'}
    assert max(map(len, by_model(vllm_page(1, 1, "x" * 900)))) == 500


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<html>502</html>",
        "\x00\xff{}",
        "vllm:spec_decode_num_drafts_total NaN\n",
        "a" * 100_000,
        "{}" * 5000,
        "# x",
    ],
)
def test_other_pages_have_no_counters(page):
    assert by_model(page) == {}


def test_growth_is_the_difference_by_counter():
    found = grown(vllm_page(10, 20, requests=5), vllm_page(110, 220, requests=25, aborted=3, slow=2))
    assert (found.drafts, found.drafted, found.accepted, found.seconds) == (100, 400, 200, 60.0)
    assert (found.requests, found.errors, found.restarted, found.gap) == (23, 3, False, None)
    assert found.acceptance_length == 3.0
    assert sum(json.loads(found.positions)) > 0
    assert found.latency_p50_s == pytest.approx(0.5 + 0.5 * 10 / 18)
    assert found.latency_p99_s == pytest.approx(1.0 + 1.5 * (19.8 - 18) / 2)


@pytest.mark.parametrize("started", [1.7e9, 1.8e9])
def test_counters_that_start_anew_count_from_the_restart(started):
    found = grown(vllm_page(1000, 2000), vllm_page(30, 60, started=started))
    assert (found.drafts, found.drafted, found.accepted, found.restarted) == (30, 120, 60, True)


def test_a_restart_that_no_counter_shows_is_seen_by_the_process():
    found = grown(vllm_page(1000, 2000), vllm_page(1500, 2500, started=1.8e9))
    assert (found.drafts, found.accepted, found.restarted) == (1500, 2500, True)


def test_what_is_no_evidence_says_why():
    assert reading("m", AT, only(vllm_page(1, 1)), None, AT).gap == FIRST
    assert grown(vllm_page(1, 1), vllm_page(2, 12)).gap == TORN
    assert grown(vllm_page(1, 1), vllm_page(2, 2), seconds=0.0).gap == NO_CLOCK
    assert grown(SGLANG, SGLANG).gap == GAUGES
    assert grown(SGLANG, SGLANG).acceptance_length == 3.25
    off = "\n".join(line for line in vllm_page(1, 1).splitlines() if "spec" not in line)
    assert grown(off, off).gap == OFF


def test_a_percentile_lies_in_the_bucket_of_its_request():
    ends = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    for seed in range(50):
        times = np.random.default_rng(seed).gamma(2.0, 0.4, size=200).clip(max=4.99)
        buckets = {str(end): float(np.sum(times <= end)) for end in ends} | {"+Inf": 200.0}
        for share in (0.5, 0.95, 0.99):
            exact = np.sort(times)[math.ceil(share * 200) - 1]
            found = latency(buckets, share)
            low = max((end for end in ends if end < exact), default=0.0)
            high = min(end for end in ends if end >= exact)
            assert low <= found <= high
    assert latency({"1.0": 0.0, "+Inf": 0.0}, 0.5) is None
    assert latency({"1.0": 0.0, "+Inf": 5.0}, 0.5) == 1.0
    assert latency({}, 0.5) is None


def test_a_page_of_sglang_has_gauges_and_no_counts():
    found = only(SGLANG)
    assert (found.drafts, found.length, found.requests, found.counts_drafts) == (400, 3.25, 12, False)
    assert found == ServerCounters(drafts=400.0, requests=12.0, length=3.25)


def test_sglang_counts_by_generated_tokens_where_a_draft_has_a_known_length():
    counted = SGLANG + 'sglang:generation_tokens_total{model_name="s"} 1312.0\n'
    assert not only(counted).counts_drafts
    (found,) = by_model(counted, 4).values()
    assert (found.drafts, found.drafted, found.accepted, found.draft_length) == (400, 1600, 900, 4)
    # the page's own length comes first, and one of the tokens that a call verifies is no draft
    told = counted + 'sglang:spec_num_draft_tokens{model_name="s"} 4.0\n'
    (found,) = by_model(told, 7).values()
    assert (found.drafted, found.draft_length) == (1200, 3)
    torn = counted.replace("1312.0", "300.0")
    assert not next(iter(by_model(torn, 4).values())).counts_drafts
