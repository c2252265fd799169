"""The fields of config.json that this engine uses, with the values that they may have.

A folder is checked when it is opened, before anything is built from it. Other fields are transformers' own business;
a null counts as absent. Sizes that only the weights can bound are bounded where the weights are read.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from engine.core.errors import ModelError

MOST_LAYERS: Final = 10_000
MOST: Final = 2**31
LONGEST: Final = 2**24
"""Positions of a context: no weight bounds them. Published models have 10 million."""
DEEPEST: Final = 4
"""Configurations inside configurations."""


@dataclass(frozen=True, slots=True)
class FieldKind:
    """Contents of a field: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    return type(value) in {int, float} and abs(value) < MOST**8 and math.isfinite(value)


COUNT: Final = FieldKind(f"a whole number from 0 to {MOST}", lambda value: _whole(value, 0, MOST))
COUNTS: Final = FieldKind(
    f"a whole number from 0 to {MOST}, or a list of them",
    lambda value: all(_whole(item, 0, MOST) for item in (value if isinstance(value, list) else [value])),
)
POSITIONS: Final = FieldKind(f"a whole number from 0 to {LONGEST}", lambda value: _whole(value, 0, LONGEST))
LAYERS: Final = FieldKind(f"a whole number from 0 to {MOST_LAYERS}", lambda value: _whole(value, 0, MOST_LAYERS))
NUMBER: Final = FieldKind("a finite number", _number)
POSITIVE: Final = FieldKind("a finite number above 0", lambda value: _number(value) and value > 0)
# rotations of more than a few radians per position would be summed for hours
ONE_UP: Final = FieldKind("a finite number from 1 on", lambda value: _number(value) and value >= 1)
UNSIGNED: Final = FieldKind("a finite number from 0 on", lambda value: _number(value) and value >= 0)
FLAG: Final = FieldKind("true or false", lambda value: isinstance(value, bool))
TEXT: Final = FieldKind("text", lambda value: isinstance(value, str))
TEXTS: Final = FieldKind(
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
)
MAPPING: Final = FieldKind("a mapping", lambda value: isinstance(value, dict))
MAPPINGS: Final = FieldKind(
    "a list of mappings", lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value)
)

FIELDS: Final[Mapping[str, FieldKind]] = MappingProxyType(
    dict.fromkeys(
        (
            "vocab_size hidden_size num_attention_heads num_key_value_heads head_dim "
            "sliding_window attention_chunk_size max_window_layers draft_vocab_size truncated_vocab_size emb_dim "
            "inner_dim n_embd kv_lora_rank block_size target_hidden_size num_target_layers"
        ).split(),
        COUNT,
    )
    | dict.fromkeys(("max_position_embeddings", "n_positions"), POSITIONS)
    | dict.fromkeys(("intermediate_size",), COUNTS)
    | dict.fromkeys(
        (
            "num_hidden_layers n_layer n_predict medusa_num_heads medusa_num_layers num_nextn_predict_layers "
            "mtp_num_hidden_layers"
        ).split(),
        LAYERS,
    )
    | {"logit_scale": NUMBER, "rms_norm_eps": UNSIGNED}
    | {"rope_theta": ONE_UP}
    | dict.fromkeys(
        (
            "attention_bias mlp_bias tie_word_embeddings bias medusa_fc_bias scale_input tie_weights "
            "use_sliding_window use_aux_hidden_state norm_before_residual norm_output"
        ).split(),
        FLAG,
    )
    | dict.fromkeys(("model_type", "hidden_act", "speculators_model_type"), TEXT)
    | dict.fromkeys(("layer_types", "architectures"), TEXTS)
    | dict.fromkeys(
        (
            "rope_parameters rope_scaling quantization_config text_config transformer_layer_config eagle_config "
            "speculators_config"
        ).split(),
        MAPPING,
    )
    | {"proposal_methods": MAPPINGS, "verifier_accept_k": NUMBER, "accept_tolerance": NUMBER}
)
ROPE: Final[Mapping[str, FieldKind]] = MappingProxyType(
    dict.fromkeys(("factor", "rope_theta"), ONE_UP)
    | dict.fromkeys("low_freq_factor high_freq_factor partial_rotary_factor".split(), POSITIVE)
    | {"original_max_position_embeddings": COUNT, "rope_type": TEXT, "type": TEXT}
)
INNER: Final = ("text_config", "transformer_layer_config", "eagle_config", "speculators_config")
"""Fields that hold a configuration of their own."""


def check_fields(document: Mapping[str, Any], where: str, depth: int = 0) -> None:
    """Check the fields of a parsed config.json, and of the configurations and rotations inside it.

    Raises:
        ModelError: names the first field with a value that it cannot have.
    """
    if depth > DEEPEST:
        raise ModelError(f"{where}: configurations are nested deeper than {DEEPEST}; restore the file")
    _check(document, FIELDS, where)
    for name in ("rope_parameters", "rope_scaling"):
        rope = document.get(name) or {}
        # one rotation, or one for each type of layer
        for rotation in chain([rope], (value for value in rope.values() if isinstance(value, dict))):
            _check(rotation, ROPE, where, f"{name}.")
            low, high = rotation.get("low_freq_factor"), rotation.get("high_freq_factor")
            if low is not None and high is not None and not low < high:
                raise ModelError(f"{where}: {name}.high_freq_factor must be above low_freq_factor; restore the file")
    for name in INNER:
        if document.get(name):
            check_fields(document[name], where, depth + 1)
    for method in document.get("proposal_methods") or ():
        _check(method, FIELDS, where, "proposal_methods.")


def _check(document: Mapping[str, Any], fields: Mapping[str, FieldKind], where: str, prefix: str = "") -> None:
    for name, kind in fields.items():
        value = document.get(name)
        if value is not None and not kind.holds(value):
            raise ModelError(f"{where}: {prefix}{name} must be {kind.words}, not {shortened(value)}; restore the file")


def shortened(value: object) -> str:
    """A value for a message, at most about 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}..."
