"""The catalogue of real-world bugs: each a small wrapper that breaks one thing.

A fault is added by one file and one line in `REGISTRY`. They exist to show that
the checks see them; an arm with a fault says so in its effective configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from engine.core.errors import InvalidRequest
from engine.core.registry import resolve

if TYPE_CHECKING:
    # names are read without torch, which these import
    from engine.decode.seams import EngineParts
    from engine.faults.interface import Fault

REGISTRY: Final[Mapping[str, str]] = {
    "argmax_draft_soft_q": "engine.faults.argmax_draft_soft_q:FAULT",
    "raw_q_warped_draft": "engine.faults.raw_q_warped_draft:FAULT",
    "draft_top_10_raw_q": "engine.faults.draft_top_10_raw_q:FAULT",
    "draft_temperature_undeclared": "engine.faults.draft_temperature_undeclared:FAULT",
    "draft_from_bf16_logits": "engine.faults.draft_from_bf16_logits:FAULT",
    "unseeded_draft": "engine.faults.unseeded_draft:FAULT",
    "siblings_share_full_q": "engine.faults.siblings_share_full_q:FAULT",
    "beam_drafts_as_samples": "engine.faults.beam_drafts_as_samples:FAULT",
    "trimmed_by_own_probability": "engine.faults.trimmed_by_own_probability:FAULT",
    "trimmed_by_next_confidence": "engine.faults.trimmed_by_next_confidence:FAULT",
    "gamma_not_respected": "engine.faults.gamma_not_respected:FAULT",
    "target_not_warped_in_test": "engine.faults.target_not_warped_in_test:FAULT",
    "sqrt_acceptance": "engine.faults.sqrt_acceptance:FAULT",
    "always_accept_top1": "engine.faults.always_accept_top1:FAULT",
    "lenient_10_percent": "engine.faults.lenient_acceptance:TENTH",
    "lenient_1_percent": "engine.faults.lenient_acceptance:HUNDREDTH",
    "lenient_0_1_percent": "engine.faults.lenient_acceptance:THOUSANDTH",
    "first_draft_unverified": "engine.faults.first_draft_unverified:FAULT",
    "last_draft_unverified": "engine.faults.last_draft_unverified:FAULT",
    "accepts_everything": "engine.faults.accepts_everything:FAULT",
    "greedy_accepts_top2": "engine.faults.greedy_accepts_top2:FAULT",
    "resample_from_p": "engine.faults.resample_from_p:FAULT",
    "residual_not_renormalised": "engine.faults.residual_not_renormalised:FAULT",
    "greedy_recovered_token": "engine.faults.greedy_recovered_token:FAULT",
    "one_hot_residual_soft_test": "engine.faults.one_hot_residual_soft_test:FAULT",
    "bonus_not_warped": "engine.faults.bonus_not_warped:FAULT",
    "bonus_dropped": "engine.faults.bonus_dropped:FAULT",
    "bonus_repeats_token": "engine.faults.bonus_repeats_token:FAULT",
    "ensemble_undeclared": "engine.faults.undeclared:ENSEMBLE",
    "typical_undeclared": "engine.faults.undeclared:TYPICAL",
    "threshold_single_undeclared": "engine.faults.undeclared:THRESHOLD_SINGLE",
    "threshold_acc_undeclared": "engine.faults.undeclared:THRESHOLD_ACC",
    "synthetic_undeclared": "engine.faults.undeclared:SYNTHETIC",
    "one_number_accept_and_residual": "engine.faults.one_number_accept_and_residual:FAULT",
    "residual_reuses_draft_number": "engine.faults.residual_reuses_draft_number:FAULT",
    "shared_gumbel_noise": "engine.faults.shared_gumbel_noise:FAULT",
    "number_reused_across_positions": "engine.faults.number_reused_across_positions:FAULT",
    "float16_uniforms": "engine.faults.float16_uniforms:FAULT",
    "uniforms_of_24_bits": "engine.faults.uniforms_of_24_bits:FAULT",
    "zero_accepts_everything": "engine.faults.zero_accepts_everything:FAULT",
    "seed_ignored": "engine.faults.seed_ignored:FAULT",
    "requests_share_numbers": "engine.faults.requests_share_numbers:FAULT",
    "noise_keyed_by_draw": "engine.faults.noise_keyed_by_draw:FAULT",
    "target_rows_shifted": "engine.faults.target_rows_shifted:FAULT",
    "bonus_wrong_row": "engine.faults.bonus_wrong_row:FAULT",
    "rows_of_another_request": "engine.faults.rows_of_another_request:FAULT",
    "drafted_rows_in_bfloat16": "engine.faults.drafted_rows_in_bfloat16:FAULT",
    "positions_off_by_one": "engine.faults.positions_off_by_one:FAULT",
    "prompt_end_read_twice": "engine.faults.prompt_end_read_twice:FAULT",
    "stale_prefix_block": "engine.faults.stale_prefix_block:FAULT",
    "kv_not_rolled_back": "engine.faults.kv_not_rolled_back:FAULT",
    "kv_residue": "engine.faults.kv_residue:FAULT",
    "tree_mask_leaks": "engine.faults.tree_mask_leaks:FAULT",
    "tree_positions_flat": "engine.faults.tree_positions_flat:FAULT",
    "wrong_path_gathered": "engine.faults.wrong_path_gathered:FAULT",
    "path_not_gathered": "engine.faults.path_not_gathered:FAULT",
    "temperature_ignored_on_drafted_rows": "engine.faults.temperature_ignored_on_drafted_rows:FAULT",
    "truncation_missing_on_drafted_rows": "engine.faults.truncation_missing_on_drafted_rows:FAULT",
    "penalties_missing_on_drafted_rows": "engine.faults.penalties_missing_on_drafted_rows:FAULT",
    "masks_missing_on_drafted_rows": "engine.faults.masks_missing_on_drafted_rows:FAULT",
    "penalties_missing_on_bonus_row": "engine.faults.penalties_missing_on_bonus_row:FAULT",
    "penalties_per_step": "engine.faults.penalties_per_step:FAULT",
    "penalties_double_counted": "engine.faults.penalties_double_counted:FAULT",
    "min_tokens_in_steps": "engine.faults.min_tokens_in_steps:FAULT",
    "first_token_from_draft": "engine.faults.first_token_from_draft:FAULT",
    "greedy_request_sampled": "engine.faults.greedy_request_sampled:FAULT",
    "ties_broken_differently": "engine.faults.ties_broken_differently:FAULT",
    "draft_rows_shifted": "engine.faults.draft_rows_shifted:FAULT",
    "stale_q": "engine.faults.stale_q:FAULT",
    "q_rounded": "engine.faults.q_rounded:FAULT",
    "draft_temperature_ignored": "engine.faults.draft_temperature_ignored:FAULT",
    "forbidden_drafts_dropped": "engine.faults.forbidden_drafts_dropped:FAULT",
    "drafts_of_another_request": "engine.faults.drafts_of_another_request:FAULT",
    "draft_one_behind": "engine.faults.draft_one_behind:FAULT",
    "wrong_aux_layers": "engine.faults.wrong_aux_layers:FAULT",
    "hidden_states_shifted": "engine.faults.hidden_states_shifted:FAULT",
    "numbers_of_another_request": "engine.faults.numbers_of_another_request:FAULT",
    "rejected_token_leaks": "engine.faults.rejected_token_leaks:FAULT",
    "tokens_after_end_token": "engine.faults.tokens_after_end_token:FAULT",
    "tokens_after_stop_string": "engine.faults.tokens_after_stop_string:FAULT",
    "length_overrun": "engine.faults.length_overrun:FAULT",
    "finish_reason_wrong": "engine.faults.finish_reason_wrong:FAULT",
    "logprob_rows_shifted": "engine.faults.logprob_rows_shifted:FAULT",
    "logprobs_zero": "engine.faults.logprobs_zero:FAULT",
    "accepted_counted_as_drafted": "engine.faults.accepted_counted_as_drafted:FAULT",
    "drafts_not_recorded": "engine.faults.drafts_not_recorded:FAULT",
    "acceptance_inflated": "engine.faults.acceptance_inflated:FAULT",
}


def load(name: str) -> Fault:
    """The fault behind a registered name.

    Raises:
        InvalidRequest: unknown fault.
    """
    fault: Fault = resolve(REGISTRY, name, "fault")
    return fault


def break_parts(name: str, parts: EngineParts) -> EngineParts:
    """The parts with one fault built in.

    Raises:
        InvalidRequest: unknown fault, or one that has no place in the arm's verification rule.
    """
    fault, protocol = load(name), parts.verifier.facts.protocol
    if fault.suits.protocols and protocol not in fault.suits.protocols:
        rules = ", ".join(fault.suits.protocols)
        raise InvalidRequest(f"fault {name} has no place in the {protocol} rule; it breaks: {rules}")
    return fault.apply(parts)
