"""Checks that the callables which the recording wraps are those it was written for.

They are internal to transformers and may move or change with any release. A difference is reported in words and lowers
the evidence.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Final

UTILS: Final = "transformers.generation.utils"
CANDIDATES: Final = "transformers.generation.candidate_generator"
_DRAFT: Final = ("self", "input_ids", "kwargs")
_DRAFT_AFTER: Final = (
    *("self", "input_ids", "model_kwargs", "model_outputs", "is_first_iteration", "n_last_matches", "kwargs"),
)

SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    f"{UTILS}:GenerationMixin._get_candidate_generator": (
        *("self", "generation_config", "input_ids", "inputs_tensor", "logits_processor", "model_kwargs"),
        *("assistant_model", "target_tokenizer", "assistant_tokenizer"),
    ),
    f"{UTILS}:_speculative_sampling": (
        *("candidate_input_ids", "candidate_logits", "candidate_length", "new_logits", "assistant_ensemble_weight"),
    ),
    f"{CANDIDATES}:CandidateGenerator.update_candidate_strategy": ("self", "input_ids", "scores", "num_matches"),
}
"""Parameters by callable, for every kind of proposer."""
DRAFTERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "draft_model": {"AssistedCandidateGenerator": _DRAFT},
    "prompt_lookup": {"PromptLookupCandidateGenerator": _DRAFT},
    "early_exit": {"EarlyExitCandidateGenerator": _DRAFT},
    "universal": {
        "AssistedCandidateGeneratorDifferentTokenizers": _DRAFT,
        "UniversalSpeculativeDecodingGenerator": _DRAFT,
    },
    "mtp": {"MTPCandidateGenerator": _DRAFT_AFTER},
    "dflash": {"DFlashTokenCandidateGenerator": _DRAFT_AFTER},
}
"""Parameters of `get_candidates` by class, for each kind."""


def problems(kind: str | None) -> tuple[str, ...]:
    """The differences from the expected callables; empty for plain generation, which needs no hook."""
    if kind is None:
        return ()
    drafters = {f"{CANDIDATES}:{name}.get_candidates": names for name, names in DRAFTERS[kind].items()}
    result = (_difference(place, expected) for place, expected in {**SHARED, **drafters}.items())
    return tuple(item for item in result if item is not None)


def _difference(place: str, expected: tuple[str, ...]) -> str | None:
    module, _, path = place.partition(":")
    try:
        target = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name)
        parameters = tuple(inspect.signature(target).parameters)  # type: ignore[arg-type]  # the current callable
    except (ImportError, AttributeError):
        return f"{module}.{path} is not there"
    except (TypeError, ValueError):
        return f"{module}.{path} is no callable with a signature"
    if parameters == expected:
        return None
    return f"{module}.{path} takes ({', '.join(parameters)}), the record was written for ({', '.join(expected)})"
