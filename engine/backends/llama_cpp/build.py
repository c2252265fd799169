"""`python -m engine.backends.llama_cpp.build SOURCE OUT`: a folder of weights as a GGUF file in float32."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from engine.backends.llama_cpp.convert import MODEL, GgufVocabulary, vocabulary_of
from engine.backends.process.convert import weights_of
from engine.models.files.gguf_format import NO_MERGE, named_tensors

ALL_F32: Final = 0
"""The type of a file without any rounded tensor."""


def build(source: Path, out: Path) -> None:
    """Write the model and its tokenizer into the new folder `out`."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    out.mkdir(parents=True)
    writer = gguf.GGUFWriter(out / MODEL, str(config["model_type"]))
    _add_shape(writer, config)
    _add_vocabulary(writer, vocabulary_of(source, config["vocab_size"]))
    _add_ends(writer, source, config)
    template = source / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text("utf-8"))
    for name, tensor in named_tensors(weights_of(source), config):
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: Mapping[str, Any]) -> None:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10000.0))))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(ALL_F32)


def _add_vocabulary(writer: Any, vocabulary: GgufVocabulary | None) -> None:
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.split)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.kinds))
    writer.add_token_merges(list(vocabulary.merges) or [NO_MERGE])
    writer.add_add_bos_token(vocabulary.begins)


def _add_ends(writer: Any, source: Path, config: Mapping[str, Any]) -> None:
    path = source / "generation_config.json"
    stated = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    ends = stated.get("eos_token_id", config.get("eos_token_id"))
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    for end, add in zip(
        ends, (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), strict=False
    ):
        add(end)
    if isinstance(config.get("bos_token_id"), int):
        writer.add_bos_token_id(config["bos_token_id"])


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
