"""Other weights in a converted model."""

import json

import numpy as np

from tests.support.engine_suites import ROOT


def change_openvino(folder):
    """Noise of a fifth of their own spread on the weights of the head."""
    # imported here, because only the environment of the engine has it
    import openvino as ov

    from engine.backends.openvino_genai.build import DecoderGraph, shape_of
    from engine.backends.process.convert import weights_of

    weights = weights_of(ROOT / "engine" / "bundled" / "target")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    noise = np.random.default_rng(0).normal(size=head.shape) * head.std() / 5
    shape = shape_of(json.loads((folder / "config.json").read_text()))
    graph = DecoderGraph(shape, {**weights, "lm_head.weight": head + noise})
    ov.save_model(graph.model(), folder / "openvino_model.xml", compress_to_fp16=False)
