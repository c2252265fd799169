"""`python -m engine.backends.openvino_genai.build SOURCE OUT`: a folder of weights as a folder that the engine loads.

The graph is this project's, because the published exporter does not run with the transformers that this project pins;
the tokenizer is converted by openvino-tokenizers.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from engine.backends.openvino_genai.convert import MODEL
from engine.backends.openvino_genai.graph import DecoderGraph, shape_of
from engine.backends.process.convert import weights_of


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

    tokenizer = AutoTokenizer.from_pretrained(source)
    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    ov.save_model(encoder, out / "openvino_tokenizer.xml")
    ov.save_model(decoder, out / "openvino_detokenizer.xml")


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
