"""Counters of servers."""

from engine.backends.openai.server_counters import change, counters, speculates

PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 4.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 6.0
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 3.0
vllm:num_requests_running{engine="0"} 2.0
sglang:spec_accept_length{tp_rank="0"} 2.5
sglang:spec_accept_length{tp_rank="1"} NaN
broken line
vllm:spec_decode_num_drafts_total{engine="2"} much
"""


def test_counters_are_summed_and_positions_kept_apart():
    assert counters(PAGE) == {
        "vllm:spec_decode_num_drafts_total": 10.0,
        "vllm:spec_decode_num_draft_tokens_total": 30.0,
        "vllm:spec_decode_num_accepted_tokens_total": 12.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total[0]": 9.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total[1]": 3.0,
        "sglang:spec_accept_length": 2.5,
    }


def test_labels_that_are_none_cost_no_more_than_their_length():
    """A search for the next label took the square of each line: minutes for this page."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    spaced = f'{name}{{ engine="0" , position="2", odd="a}} \\" b" }} 5\n'
    hostile = "".join(f'{name}{{position="1",{"a" * 9_000}}} {count}\n' for count in range(300))
    assert counters(spaced + hostile) == {f"{name}[2]": 5.0, f"{name}[1]": sum(range(300))}


def test_growth_of_counters_and_gauges_as_they_are():
    before = {"vllm:spec_decode_num_draft_tokens_total": 10.0, "sglang:spec_accept_length": 9.0}
    found = change(before, counters(PAGE))
    assert (found["drafted"], found["accepted"]) == (20, 12)
    assert found["samples"]["sglang:spec_accept_length"] == 2.5
    assert "restarted" not in found


def test_the_counters_of_llama_cpp_have_the_same_names_behind_its_own():
    drafted, accepted = (f"llamacpp:spec_decode_num_{name}_tokens_total" for name in ("draft", "accepted"))
    found = change({drafted: 4.0}, counters(f"{drafted} 9\n{accepted} 3\n"))
    assert (found["drafted"], found["accepted"]) == (5, 3)


def test_the_counters_of_tensorrt_llm_have_their_own_prefix():
    drafted, accepted = (f"trtllm_spec_decode_num_{name}_tokens_total" for name in ("draft", "accepted"))
    found = change({drafted: 4.0}, counters(f"{drafted} 9\n{accepted} 3\n"))
    assert (found["drafted"], found["accepted"]) == (5, 3)


def test_tensorrt_llm_names_its_settings_of_drafts_where_it_has_any():
    model = 'trtllm_model_config_info{model="m"} 1.0\n'
    assert speculates(model + 'trtllm_speculative_config_info{spec_method="Eagle"} 1.0\n') is True
    assert speculates(model) is False


def test_a_counter_that_fell_is_a_server_that_was_restarted():
    assert change({"vllm:spec_decode_num_drafts_total": 11.0}, counters(PAGE))["restarted"]


def test_only_pages_that_would_say_so_tell_whether_a_server_speculates():
    assert speculates(PAGE) is True
    assert speculates('vllm:num_requests_running{engine="0"} 2.0') is False
    assert speculates("sglang:spec_accept_length 1.0") is None
    assert speculates("") is None
