"""`python -m engine.backends.openvino_genai.build SOURCE OUT`: a folder of weights as a folder that the engine loads.

The graph is this project's, because the published exporter does not run with the transformers that this project pins;
the tokenizer is converted by openvino-tokenizers. The graph is a llama-like decoder in float32, with a stateful cache
as the engine expects it. It covers the families of `FAMILIES` with plain rotary positions.

Cannot see: a mistake in this file itself; tests compare its logits with transformers', and `audit run` the engine's
tokens with a reference pass.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from engine.backends.openvino_genai.convert import MODEL
from engine.backends.process.convert import weights_of

PAST = "past_key_values.{0}.{1}present.{0}.{1}"
"""The name of a cache variable, as the engine's other models have it."""
MASKED = float(np.finfo(np.float32).min)


def build(source: Path, out: Path) -> None:
    """Write the model, its tokenizer, and its configuration into the new folder `out`."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    out.mkdir(parents=True)
    graph = DecoderGraph(shape_of(config), weights_of(source)).model()
    ov.save_model(graph, out / MODEL, compress_to_fp16=False)
    shutil.copyfile(source / "config.json", out / "config.json")
    (out / "generation_config.json").write_text(json.dumps(_ends(source, config)), "utf-8")
    _tokenizer(source, out)


def _ends(source: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    path = source / "generation_config.json"
    stated = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    ends = stated.get("eos_token_id", config.get("eos_token_id"))
    return {} if ends is None else {"eos_token_id": ends}


def _tokenizer(source: Path, out: Path) -> None:
    if not (source / "tokenizer.json").is_file():
        return
    # imported late: a model without a tokenizer needs neither
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    encoder, decoder = convert_tokenizer(AutoTokenizer.from_pretrained(source), with_detokenizer=True)
    ov.save_model(encoder, out / "openvino_tokenizer.xml")
    ov.save_model(decoder, out / "openvino_detokenizer.xml")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder."""

    layers: int
    heads: int
    pairs: int
    head: int
    hidden: int
    epsilon: float
    theta: float

    @property
    def groups(self) -> int:
        """Query heads of one key head."""
        return self.heads // self.pairs


@dataclass(frozen=True, slots=True)
class Positions:
    """Inputs of every layer: cosines and sines, the mask, and the rows of the batch."""

    cosine: Any
    sine: Any
    mask: Any
    beam: Any
    batch: Any


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The sizes that a configuration gives."""
    heads, rope = config["num_attention_heads"], config.get("rope_parameters") or {}
    return Shape(
        layers=config["num_hidden_layers"],
        heads=heads,
        pairs=config.get("num_key_value_heads") or heads,
        head=config.get("head_dim") or config["hidden_size"] // heads,
        hidden=config["hidden_size"],
        epsilon=config["rms_norm_eps"],
        theta=rope.get("rope_theta") or config.get("rope_theta") or 10000.0,
    )


class DecoderGraph:
    """The graph of one model: `weights` by their names in the source."""

    def __init__(self, shape: Shape, weights: Mapping[str, np.ndarray]) -> None:
        self._shape, self._weights = shape, weights
        self._sinks: list[Any] = []
        self._variables: list[Any] = []

    def model(self) -> ov.Model:
        """Ids, mask, positions and rows of the cache in; logits out."""
        inputs = [_input(name, 2) for name in ("input_ids", "attention_mask", "position_ids")] + [_input("beam_idx", 1)]
        ids, attention, position, beam = inputs
        at = self._positions(ids, attention, position, beam)
        state = ops.gather(_constant(self._weights["model.embed_tokens.weight"]), ids, _integers(0))
        for layer in range(self._shape.layers):
            state = self._layer(f"model.layers.{layer}", layer, state, at)
        state = self._norm("model.norm", state)
        head = self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])
        logits = ops.matmul(state, _constant(head), False, True)
        logits.output(0).set_names({"logits"})
        return ov.Model([ops.result(logits)], self._sinks, inputs, self._variables, "decoder")

    def _positions(self, ids: Any, attention: Any, position: Any, beam: Any) -> Positions:
        exponents = np.arange(0, self._shape.head, 2, dtype=np.float64) / self._shape.head
        rates = _constant((self._shape.theta**-exponents).reshape(1, 1, -1))
        turns = ops.multiply(ops.convert(ops.unsqueeze(position, _integers(2)), "f32"), rates)
        angles = ops.unsqueeze(ops.concat([turns, turns], 2), _integers(1))
        total = ops.gather(ops.shape_of(attention, "i64"), _integers(1), _integers(0))
        keys = ops.range(_integers(0), total, _integers(1), "i64")
        seen = ops.less_equal(keys, ops.unsqueeze(position, _integers(2)))
        mask = ops.select(ops.unsqueeze(seen, _integers(1)), _constant(0.0), _constant(MASKED))
        batch = ops.gather(ops.shape_of(ids, "i64"), _integers([0]), _integers(0))
        return Positions(ops.cos(angles), ops.sin(angles), mask, beam, batch)

    def _layer(self, name: str, layer: int, state: Any, at: Positions) -> Any:
        attended = self._attention(f"{name}.self_attn", layer, self._norm(f"{name}.input_layernorm", state), at)
        state = ops.add(state, attended)
        normed = self._norm(f"{name}.post_attention_layernorm", state)
        gate = ops.swish(self._linear(f"{name}.mlp.gate_proj", normed))
        inner = ops.multiply(gate, self._linear(f"{name}.mlp.up_proj", normed))
        return ops.add(state, self._linear(f"{name}.mlp.down_proj", inner))

    def _attention(self, name: str, layer: int, state: Any, at: Positions) -> Any:
        shape = self._shape
        query = _turned(self._heads(name, "q", shape.heads, state), at, shape.head)
        key = self._cached(layer, "key", _turned(self._heads(name, "k", shape.pairs, state), at, shape.head), at)
        value = self._cached(layer, "value", self._heads(name, "v", shape.pairs, state), at)
        attended = ops.scaled_dot_product_attention(query, self._repeated(key), self._repeated(value), at.mask)
        joined = ops.transpose(attended, _integers([0, 2, 1, 3]))
        return self._linear(f"{name}.o_proj", ops.reshape(joined, _integers([0, 0, -1]), True))

    def _heads(self, name: str, part: str, count: int, state: Any) -> Any:
        """The heads of one part, [B, heads, S, head]."""
        flat = self._linear(f"{name}.{part}_proj", state)
        split = ops.reshape(flat, _integers([0, 0, count, self._shape.head]), True)
        if f"{name}.{part}_norm.weight" in self._weights:
            split = self._norm(f"{name}.{part}_norm", split)
        return ops.transpose(split, _integers([0, 2, 1, 3]))

    def _cached(self, layer: int, part: str, new: Any, at: Positions) -> Any:
        shape, name = self._shape, PAST.format(layer, part)
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type = ov.PartialShape([-1, shape.pairs, -1, shape.head]), ov.Type.f32
        info.variable_id = name
        variable = ov.op.util.Variable(info)
        parts = [at.batch, _integers([shape.pairs]), _integers([0]), _integers([shape.head])]
        empty = ops.broadcast(_constant(0.0), ops.concat(parts, 0))
        past = ops.gather(ops.read_value(empty, variable), at.beam, _integers(0))
        both = ops.concat([past, new], 2)
        self._sinks.append(ops.assign(both, variable))
        self._variables.append(variable)
        return both

    def _repeated(self, cached: Any) -> Any:
        """Every key head once for each of its query heads."""
        shape = self._shape
        if shape.groups == 1:
            return cached
        spread = ops.broadcast(
            ops.unsqueeze(cached, _integers(2)), _integers([1, 1, shape.groups, 1, 1]), broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(spread, _integers([0, shape.heads, -1, shape.head]), True)

    def _linear(self, name: str, state: Any) -> Any:
        product = ops.matmul(state, _constant(self._weights[f"{name}.weight"]), False, True)
        bias = self._weights.get(f"{name}.bias")
        return product if bias is None else ops.add(product, _constant(bias))

    def _norm(self, name: str, state: Any) -> Any:
        squares = ops.reduce_mean(ops.multiply(state, state), _integers([-1]), True)
        root = ops.sqrt(ops.add(squares, _constant(self._shape.epsilon)))
        return ops.multiply(ops.divide(state, root), _constant(self._weights[f"{name}.weight"]))


def _turned(heads: Any, at: Positions, size: int) -> Any:
    """Rotary positions, halves of a head as pairs."""
    first, second = (ops.slice(heads, [low], [high], [1], [3]) for low, high in ((0, size // 2), (size // 2, size)))
    swapped = ops.concat([ops.negative(second), first], 3)
    return ops.add(ops.multiply(heads, at.cosine), ops.multiply(swapped, at.sine))


def _input(name: str, rank: int) -> Any:
    node = ops.parameter(ov.PartialShape([-1] * rank), ov.Type.i32 if name == "beam_idx" else ov.Type.i64, name)
    # the engine finds its inputs by both names
    node.output(0).set_names({name})
    node.set_friendly_name(name)
    return node


def _constant(value: Any) -> Any:
    return ops.constant(np.asarray(value, dtype=np.float32))


def _integers(value: Any) -> Any:
    return ops.constant(np.asarray(value, dtype=np.int64))


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
