"""Every extension point of the engine on one page: `name -> "module:attribute"`, imported on use.

The module imports only the engine's errors, so that names can be looked up without torch.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from engine.core.errors import InvalidRequest

PROPOSERS: Final[Mapping[str, str]] = {
    "cascade": "engine.proposers.draft_model.cascade:CascadeProposer",
    "ddtree": "engine.proposers.trained.ddtree:DDTreeProposer",
    "dflash": "engine.proposers.trained.dflash:DFlashProposer",
    "draft_model": "engine.proposers.draft_model.draft_model:DraftModelProposer",
    "eagle": "engine.proposers.trained.eagle:EagleProposer",
    "eagle2": "engine.proposers.trained.eagle:Eagle2Proposer",
    "eagle3": "engine.proposers.trained.eagle:Eagle3Proposer",
    "early_exit": "engine.proposers.self_draft:EarlyExitProposer",
    "layer_skip": "engine.proposers.self_draft:LayerSkipProposer",
    "lookahead": "engine.proposers.copying.lookahead:LookaheadProposer",
    "mtp": "engine.proposers.trained.mtp:MtpProposer",
    "medusa": "engine.proposers.trained.medusa:MedusaProposer",
    "mlp_speculator": "engine.proposers.trained.mlp_speculator:MlpSpeculatorProposer",
    "ngram": "engine.proposers.copying.ngram:NgramProposer",
    "online": "engine.proposers.draft_model.online:OnlineProposer",
    "sequoia": "engine.proposers.draft_model.sequoia:SequoiaProposer",
    "specinfer": "engine.proposers.draft_model.specinfer:SpecInferProposer",
    "suffix": "engine.proposers.copying.suffix:SuffixProposer",
}
"""Proposer families: classes with `build(parts: ProposerParts) -> Proposer`."""

VERIFIERS: Final[Mapping[str, str]] = {
    "greedy": "engine.verify.greedy:GreedyVerifier",
    "chain": "engine.verify.chain:ChainVerifier",
    "tree": "engine.verify.tree:TreeVerifier",
    "block": "engine.verify.block:BlockVerifier",
    "gumbel": "engine.verify.gumbel:GumbelVerifier",
    "typical": "engine.verify.lossy:TypicalVerifier",
    "threshold": "engine.verify.lossy:ThresholdVerifier",
    "ensemble": "engine.verify.lossy:EnsembleVerifier",
    "synthetic": "engine.verify.lossy:SyntheticVerifier",
}
"""Verification rules, by `engine.core.types.Protocol`; their options are in `engine.verify.SETTINGS`."""

BACKENDS: Final[Mapping[str, str]] = {
    "native": "engine.backends.native:NATIVE_KIND",
    "scripted": "engine.backends.native:SCRIPTED_KIND",
    "transformers": "engine.backends.transformers:KIND",
    "vllm": "engine.backends.vllm:KIND",
    "openai": "engine.backends.openai:KIND",
    "llama_cpp": "engine.backends.llama_cpp:KIND",
    "onnxruntime_genai": "engine.backends.onnxruntime_genai:KIND",
    "openvino_genai": "engine.backends.openvino_genai:KIND",
    "mlx_lm": "engine.backends.mlx_lm:KIND",
}
"""Engines to audit: the facts that each states, an `engine.backends.catalogue.BackendKind`."""

CONVERTERS: Final[Mapping[str, str]] = {
    "onnx": "engine.backends.onnxruntime_genai.convert:CONVERTER",
    "gguf": "engine.backends.llama_cpp.convert:CONVERTER",
    "openvino": "engine.backends.openvino_genai.convert:CONVERTER",
}
"""Formats of `audit convert`: an `engine.backends.process.convert.ModelConverter` each."""

GRAMMARS: Final[Mapping[str, str]] = {
    "llguidance": "engine.constraints.llguidance:LlguidanceLibrary",
    "xgrammar": "engine.constraints.xgrammar:XgrammarLibrary",
}
"""Grammar libraries, by the name of their package: classes of a vocabulary's `TokenSpelling`."""

NUMERICS: Final[Mapping[str, str]] = {
    "fast": "engine.models.numerics.fast:FastNumerics",
    "fixed": "engine.models.numerics.tiled:FixedNumerics",
    "tiled": "engine.models.numerics.tiled:TiledNumerics",
    "ordered": "engine.models.numerics.ordered.ordered:OrderedNumerics",
    "exact": "engine.models.numerics.exact:ExactNumerics",
    "int8": "engine.models.numerics.ordered.ordered:Int8Numerics",
}
"""Modes of arithmetic: classes without arguments."""

FILTERS: Final[Mapping[str, str]] = {
    "patterns": "engine.stream.filters.patterns:build",
    "presidio": "engine.stream.filters.presidio:build",
    "detect_secrets": "engine.stream.filters.detect_secrets:build",
    "classifier": "engine.stream.filters.classifier:build",
}
"""Safety filters: functions of a `FilterSpec` that give `FilterRules`."""

LOADERS: Final[Mapping[str, str]] = {
    "lean": "engine.models.decoder.lean:load_folder",
    "hf": "engine.models.hf:load_folder",
}
"""Ways to load a model folder."""

HEAD_FORMATS: Final[Mapping[str, str]] = {
    "dflash": "engine.heads.formats.dflash:LAYOUT",
    "eagle": "engine.heads.formats.eagle:LAYOUT",
    "eagle3": "engine.heads.formats.eagle3:LAYOUT",
    "eagle3_speculators": "engine.heads.formats.eagle3:SPECULATORS",
    "medusa": "engine.heads.formats.medusa:LAYOUT",
    "mimo_mtp": "engine.heads.formats.mtp:LAYOUT",
    "mlp_speculator": "engine.heads.formats.mlp_speculator:LAYOUT",
    "qwen3_next_mtp": "engine.heads.formats.mtp:QWEN3_NEXT_LAYOUT",
    "deepseek_mtp": "engine.heads.formats.mtp:DEEPSEEK",
}
"""Published layouts of draft heads; the first that recognises a config.json reads it."""

HEAD_TRAINERS: Final[Mapping[str, str]] = {
    "dflash": "engine.train.heads.dflash:train_dflash",
    "eagle": "engine.train.heads.eagle:train_eagle",
    "eagle3": "engine.train.heads.eagle3:train_eagle3",
    "medusa": "engine.train.heads.medusa:train_medusa",
    "mlp_speculator": "engine.train.heads.mlp_speculator:train_mlp_speculator",
    "mtp": "engine.train.heads.mtp:train_mtp",
}
"""Training stages of the bundled draft heads: functions of a `HeadStage`."""

FAULTS: Final[Mapping[str, str]] = {
    "argmax_draft_soft_q": "engine.faults.drafting:ARGMAX_DRAFT_SOFT_Q",
    "raw_q_warped_draft": "engine.faults.drafting:RAW_Q_WARPED_DRAFT",
    "draft_top_10_raw_q": "engine.faults.drafting:DRAFT_TOP_10_RAW_Q",
    "draft_temperature_undeclared": "engine.faults.drafting:DRAFT_TEMPERATURE_UNDECLARED",
    "draft_from_bf16_logits": "engine.faults.drafting:DRAFT_FROM_BF16_LOGITS",
    "unseeded_draft": "engine.faults.drafting:UNSEEDED_DRAFT",
    "siblings_share_full_q": "engine.faults.drafting:SIBLINGS_SHARE_FULL_Q",
    "beam_drafts_as_samples": "engine.faults.drafting:BEAM_DRAFTS_AS_SAMPLES",
    "trimmed_by_own_probability": "engine.faults.proposals:TRIMMED_BY_OWN_PROBABILITY",
    "trimmed_by_next_confidence": "engine.faults.proposals:TRIMMED_BY_NEXT_CONFIDENCE",
    "gamma_not_respected": "engine.faults.proposals:GAMMA_NOT_RESPECTED",
    "target_not_warped_in_test": "engine.faults.verification:TARGET_NOT_WARPED_IN_TEST",
    "sqrt_acceptance": "engine.faults.verification:SQRT_ACCEPTANCE",
    "always_accept_top1": "engine.faults.verification:ALWAYS_ACCEPT_TOP1",
    "lenient_10_percent": "engine.faults.verification:LENIENT_10_PERCENT",
    "lenient_1_percent": "engine.faults.verification:LENIENT_1_PERCENT",
    "lenient_0_1_percent": "engine.faults.verification:LENIENT_0_1_PERCENT",
    "first_draft_unverified": "engine.faults.verification:FIRST_DRAFT_UNVERIFIED",
    "last_draft_unverified": "engine.faults.verification:LAST_DRAFT_UNVERIFIED",
    "accepts_everything": "engine.faults.verification:ACCEPTS_EVERYTHING",
    "greedy_accepts_top2": "engine.faults.verification:GREEDY_ACCEPTS_TOP2",
    "resample_from_p": "engine.faults.verification:RESAMPLE_FROM_P",
    "residual_not_renormalised": "engine.faults.verification:RESIDUAL_NOT_RENORMALISED",
    "greedy_recovered_token": "engine.faults.verification:GREEDY_RECOVERED_TOKEN",
    "one_hot_residual_soft_test": "engine.faults.verification:ONE_HOT_RESIDUAL_SOFT_TEST",
    "bonus_not_warped": "engine.faults.verification:BONUS_NOT_WARPED",
    "bonus_dropped": "engine.faults.verification:BONUS_DROPPED",
    "bonus_repeats_token": "engine.faults.verification:BONUS_REPEATS_TOKEN",
    "ensemble_undeclared": "engine.faults.undeclared:ENSEMBLE_UNDECLARED",
    "typical_undeclared": "engine.faults.undeclared:TYPICAL_UNDECLARED",
    "threshold_single_undeclared": "engine.faults.undeclared:THRESHOLD_SINGLE_UNDECLARED",
    "threshold_acc_undeclared": "engine.faults.undeclared:THRESHOLD_ACC_UNDECLARED",
    "synthetic_undeclared": "engine.faults.undeclared:SYNTHETIC_UNDECLARED",
    "one_number_accept_and_residual": "engine.faults.random_numbers:ONE_NUMBER_ACCEPT_AND_RESIDUAL",
    "residual_reuses_draft_number": "engine.faults.random_numbers:RESIDUAL_REUSES_DRAFT_NUMBER",
    "shared_gumbel_noise": "engine.faults.drafting:SHARED_GUMBEL_NOISE",
    "number_reused_across_positions": "engine.faults.random_numbers:NUMBER_REUSED_ACROSS_POSITIONS",
    "float16_uniforms": "engine.faults.random_numbers:FLOAT16_UNIFORMS",
    "uniforms_of_24_bits": "engine.faults.random_numbers:UNIFORMS_OF_24_BITS",
    "zero_accepts_everything": "engine.faults.random_numbers:ZERO_ACCEPTS_EVERYTHING",
    "seed_ignored": "engine.faults.random_numbers:SEED_IGNORED",
    "requests_share_numbers": "engine.faults.random_numbers:REQUESTS_SHARE_NUMBERS",
    "noise_keyed_by_draw": "engine.faults.random_numbers:NOISE_KEYED_BY_DRAW",
    "target_rows_shifted": "engine.faults.target_rows:TARGET_ROWS_SHIFTED",
    "bonus_wrong_row": "engine.faults.target_rows:BONUS_WRONG_ROW",
    "rows_of_another_request": "engine.faults.target_rows:ROWS_OF_ANOTHER_REQUEST",
    "drafted_rows_in_bfloat16": "engine.faults.target_rows:DRAFTED_ROWS_IN_BFLOAT16",
    "positions_off_by_one": "engine.faults.target_rows:POSITIONS_OFF_BY_ONE",
    "prompt_end_read_twice": "engine.faults.target_rows:PROMPT_END_READ_TWICE",
    "stale_prefix_block": "engine.faults.cache:STALE_PREFIX_BLOCK",
    "kv_not_rolled_back": "engine.faults.cache:KV_NOT_ROLLED_BACK",
    "kv_residue": "engine.faults.cache:KV_RESIDUE",
    "tree_mask_leaks": "engine.faults.target_rows:TREE_MASK_LEAKS",
    "tree_positions_flat": "engine.faults.target_rows:TREE_POSITIONS_FLAT",
    "wrong_path_gathered": "engine.faults.cache:WRONG_PATH_GATHERED",
    "path_not_gathered": "engine.faults.cache:PATH_NOT_GATHERED",
    "temperature_ignored_on_drafted_rows": "engine.faults.parameters:TEMPERATURE_IGNORED_ON_DRAFTED_ROWS",
    "truncation_missing_on_drafted_rows": "engine.faults.parameters:TRUNCATION_MISSING_ON_DRAFTED_ROWS",
    "penalties_missing_on_drafted_rows": "engine.faults.parameters:PENALTIES_MISSING_ON_DRAFTED_ROWS",
    "masks_missing_on_drafted_rows": "engine.faults.parameters:MASKS_MISSING_ON_DRAFTED_ROWS",
    "penalties_missing_on_bonus_row": "engine.faults.parameters:PENALTIES_MISSING_ON_BONUS_ROW",
    "penalties_per_step": "engine.faults.parameters:PENALTIES_PER_STEP",
    "penalties_double_counted": "engine.faults.parameters:PENALTIES_DOUBLE_COUNTED",
    "min_tokens_in_steps": "engine.faults.parameters:MIN_TOKENS_IN_STEPS",
    "first_token_from_draft": "engine.faults.target_rows:FIRST_TOKEN_FROM_DRAFT",
    "greedy_request_sampled": "engine.faults.parameters:GREEDY_REQUEST_SAMPLED",
    "ties_broken_differently": "engine.faults.target_rows:TIES_BROKEN_DIFFERENTLY",
    "draft_rows_shifted": "engine.faults.proposals:DRAFT_ROWS_SHIFTED",
    "stale_q": "engine.faults.proposals:STALE_Q",
    "q_rounded": "engine.faults.drafting:Q_ROUNDED",
    "draft_temperature_ignored": "engine.faults.drafting:DRAFT_TEMPERATURE_IGNORED",
    "forbidden_drafts_dropped": "engine.faults.proposals:FORBIDDEN_DRAFTS_DROPPED",
    "drafts_of_another_request": "engine.faults.proposals:DRAFTS_OF_ANOTHER_REQUEST",
    "draft_one_behind": "engine.faults.draft_models:DRAFT_ONE_BEHIND",
    "wrong_aux_layers": "engine.faults.target_rows:WRONG_AUX_LAYERS",
    "hidden_states_shifted": "engine.faults.target_rows:HIDDEN_STATES_SHIFTED",
    "numbers_of_another_request": "engine.faults.random_numbers:NUMBERS_OF_ANOTHER_REQUEST",
    "rejected_token_leaks": "engine.faults.verification:REJECTED_TOKEN_LEAKS",
    "tokens_after_end_token": "engine.faults.endings:TOKENS_AFTER_END_TOKEN",
    "tokens_after_stop_string": "engine.faults.endings:TOKENS_AFTER_STOP_STRING",
    "length_overrun": "engine.faults.endings:LENGTH_OVERRUN",
    "finish_reason_wrong": "engine.faults.endings:FINISH_REASON_WRONG",
    "logprob_rows_shifted": "engine.faults.records:LOGPROB_ROWS_SHIFTED",
    "logprobs_zero": "engine.faults.records:LOGPROBS_ZERO",
    "accepted_counted_as_drafted": "engine.faults.records:ACCEPTED_COUNTED_AS_DRAFTED",
    "drafts_not_recorded": "engine.faults.records:DRAFTS_NOT_RECORDED",
    "acceptance_inflated": "engine.faults.records:ACCEPTANCE_INFLATED",
    "residual_with_epsilon": "engine.faults.verification:RESIDUAL_WITH_EPSILON",
    "rejected_token_recovered": "engine.faults.verification:REJECTED_TOKEN_RECOVERED",
    "same_token_accepted": "engine.faults.verification:SAME_TOKEN_ACCEPTED",
    "recovered_from_next_row": "engine.faults.verification:RECOVERED_FROM_NEXT_ROW",
    "last_accepted_entry_stale": "engine.faults.steps:LAST_ACCEPTED_ENTRY_STALE",
    "rejected_last_entry_stays": "engine.faults.steps:REJECTED_LAST_ENTRY_STAYS",
    "history_lost_after_rejection": "engine.faults.steps:HISTORY_LOST_AFTER_REJECTION",
    "page_border_entries_lost": "engine.faults.steps:PAGE_BORDER_ENTRIES_LOST",
    "last_chunk_one_early": "engine.faults.steps:LAST_CHUNK_ONE_EARLY",
    "deep_path_not_gathered": "engine.faults.cache:DEEP_PATH_NOT_GATHERED",
    "partial_prefix_taken_whole": "engine.faults.cache:PARTIAL_PREFIX_TAKEN_WHOLE",
    "rotation_changes_beyond_length": "engine.faults.target_rows:ROTATION_CHANGES_BEYOND_LENGTH",
    "truncation_missing_without_draft": "engine.faults.parameters:TRUNCATION_MISSING_WITHOUT_DRAFT",
    "min_tokens_at_step_start": "engine.faults.parameters:MIN_TOKENS_AT_STEP_START",
    "penalties_without_draft": "engine.faults.parameters:PENALTIES_WITHOUT_DRAFT",
    "penalties_of_last_token": "engine.faults.parameters:PENALTIES_OF_LAST_TOKEN",
    "rejected_drafts_penalised": "engine.faults.parameters:REJECTED_DRAFTS_PENALISED",
    "bad_words_one_early_in_draft": "engine.faults.parameters:BAD_WORDS_ONE_EARLY_IN_DRAFT",
    "top_k_ties_cut": "engine.faults.parameters:TOP_K_TIES_CUT",
    "parameters_of_first_row": "engine.faults.batch:PARAMETERS_OF_FIRST_ROW",
    "top_k_of_neighbour": "engine.faults.batch:TOP_K_OF_NEIGHBOUR",
    "bad_words_of_first_rows": "engine.faults.batch:BAD_WORDS_OF_FIRST_ROWS",
    "padding_penalised": "engine.faults.batch:PADDING_PENALISED",
    "positions_of_longest_row": "engine.faults.batch:POSITIONS_OF_LONGEST_ROW",
    "drafts_padded_to_longest": "engine.faults.batch:DRAFTS_PADDED_TO_LONGEST",
    "last_token_of_previous_request": "engine.faults.batch:LAST_TOKEN_OF_PREVIOUS_REQUEST",
    "numbers_of_the_row": "engine.faults.batch:NUMBERS_OF_THE_ROW",
    "last_seed_wins": "engine.faults.batch:LAST_SEED_WINS",
    "rows_shifted_after_finish": "engine.faults.batch:ROWS_SHIFTED_AFTER_FINISH",
    "draft_rewound_too_far": "engine.faults.draft_models:DRAFT_REWOUND_TOO_FAR",
    "draft_cache_of_previous_request": "engine.faults.draft_models:DRAFT_CACHE_OF_PREVIOUS_REQUEST",
    "draft_cache_not_filled": "engine.faults.draft_models:DRAFT_CACHE_NOT_FILLED",
    "draft_positions_clamped": "engine.faults.draft_models:DRAFT_POSITIONS_CLAMPED",
    "draft_vocabulary_shifted": "engine.faults.draft_models:DRAFT_VOCABULARY_SHIFTED",
    "copies_from_previous_request": "engine.faults.draft_models:COPIES_FROM_PREVIOUS_REQUEST",
    "drafted_end_ignored": "engine.faults.endings:DRAFTED_END_IGNORED",
    "stop_string_out_of_window": "engine.faults.endings:STOP_STRING_OUT_OF_WINDOW",
    "stop_string_across_steps_missed": "engine.faults.endings:STOP_STRING_ACROSS_STEPS_MISSED",
    "bonus_end_ignored": "engine.faults.endings:BONUS_END_IGNORED",
    "bonus_after_end": "engine.faults.endings:BONUS_AFTER_END",
    "length_cut_short": "engine.faults.endings:LENGTH_CUT_SHORT",
    "text_out_of_order": "engine.faults.endings:TEXT_OUT_OF_ORDER",
    "call_recorded_twice": "engine.faults.tools:CALL_RECORDED_TWICE",
    "parser_fed_per_chunk": "engine.faults.tools:PARSER_FED_PER_CHUNK",
    "tool_arguments_cut_at_accept": "engine.faults.tools:TOOL_ARGUMENTS_CUT_AT_ACCEPT",
    "tool_call_from_draft": "engine.faults.tools:TOOL_CALL_FROM_DRAFT",
    "chunk_before_verification": "engine.faults.streams:CHUNK_BEFORE_VERIFICATION",
    "stop_string_not_held": "engine.faults.streams:STOP_STRING_NOT_HELD",
    "filter_reads_drafts": "engine.faults.streams:FILTER_READS_DRAFTS",
    "filter_not_rolled_back": "engine.faults.streams:FILTER_NOT_ROLLED_BACK",
    "filter_per_step": "engine.faults.streams:FILTER_PER_STEP",
    "filter_not_flushed_at_length": "engine.faults.streams:FILTER_NOT_FLUSHED_AT_LENGTH",
    "mask_on_draft_only": "engine.faults.constraints:MASK_ON_DRAFT_ONLY",
    "mask_missing_on_bonus_token": "engine.faults.constraints:MASK_MISSING_ON_BONUS_TOKEN",
    "matcher_not_rolled_back": "engine.faults.constraints:MATCHER_NOT_ROLLED_BACK",
    "matcher_advanced_by_rejected_tokens": "engine.faults.constraints:MATCHER_ADVANCED_BY_REJECTED_TOKENS",
    "mask_of_another_row": "engine.faults.constraints:MASK_OF_ANOTHER_ROW",
    "end_allowed_inside_answer": "engine.faults.constraints:END_ALLOWED_INSIDE_ANSWER",
}
"""Faults of the built-in engine: `engine.faults.interface.Fault`."""

SERVICE_FAULTS: Final[Mapping[str, str]] = {
    "fallback_answers": "engine.faults.services:FALLBACK_ANSWERS",
    "build_changes": "engine.faults.services:BUILD_CHANGES",
    "provider_changes": "engine.faults.services:PROVIDER_CHANGES",
    "scores_lost": "engine.faults.services:SCORES_LOST",
    "scores_zero": "engine.faults.services:SCORES_ZERO",
    "lists_lost": "engine.faults.services:LISTS_LOST",
    "ids_lost": "engine.faults.services:IDS_LOST",
    "block_used": "engine.faults.services:BLOCK_USED",
    "first_slot_counted": "engine.faults.services:FIRST_SLOT_COUNTED",
    "length_before_stop": "engine.faults.services:LENGTH_BEFORE_STOP",
    "streamed_text_lost": "engine.faults.services:STREAMED_TEXT_LOST",
    "call_arguments_lost": "engine.faults.services:CALL_ARGUMENTS_LOST",
    "sampled_as_greedy": "engine.faults.services:SAMPLED_AS_GREEDY",
    "truncation_dropped": "engine.faults.services:TRUNCATION_DROPPED",
    "penalties_dropped": "engine.faults.services:PENALTIES_DROPPED",
    "grammar_dropped": "engine.faults.services:GRAMMAR_DROPPED",
    "template_arguments_dropped": "engine.faults.services:TEMPLATE_ARGUMENTS_DROPPED",
    "earlier_turns_lost": "engine.faults.services:EARLIER_TURNS_LOST",
    "slot_of_cancelled": "engine.faults.services:SLOT_OF_CANCELLED",
    "one_seed": "engine.faults.services:ONE_SEED",
}
"""Faults of what an endpoint receives and answers: `engine.faults.services.ServiceFault`."""


def resolve(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """The object behind a registered name.

    Raises:
        InvalidRequest: the name is not registered; the message lists those that are.
    """
    if name not in registry:
        raise InvalidRequest(f"unknown {kind} {name!r}; known: {', '.join(sorted(registry))}")
    return load(registry[name])


def load(place: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
