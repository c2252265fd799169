"""Ways to draft that the bundled models have and other tests leave out: reconciled, with the tokens of the target."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.native.backend import open_models
from engine.backends.vllm.backend import VllmBackend
from engine.core.types import Protocol, QKind
from engine.record.trace import decode

from .arms import answered, plan, reconciled, requests
from .setting import GAMMA, REFERENCE

pytestmark = pytest.mark.vllm

TARGET, DRAFT = "bundled:target", "bundled:medium_draft"


@pytest.fixture(scope="module")
def speculators(tmp_path_factory):
    """The bundled EAGLE-3 head in the format of the package speculators."""
    out, source = tmp_path_factory.mktemp("speculators"), REFERENCE / "eagle3"
    config = json.loads((source / "config.json").read_text())
    layers = config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
    document = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config.pop("draft_vocab_size"),
        "vocab_size": config["vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": layers,
        "transformer_layer_config": {**config, "architectures": ["LlamaForCausalLM"]},
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": GAMMA}],
            "verifier": {"name_or_path": str(REFERENCE / "target"), "architectures": ["LlamaForCausalLM"]},
        },
    }
    (out / "config.json").write_text(json.dumps(document))
    tensors = load_file(source / "model.safetensors")
    save_file(
        {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}, out / "model.safetensors"
    )
    return str(out)


@pytest.fixture(scope="module")
def expected(prompts):
    torch.set_num_threads(1)
    engine = open_models({"target": ModelSource(TARGET)}).arm(EngineSpec(Protocol.GREEDY))
    return {key: each.tokens for key, each in answered(engine, requests(prompts[:5])).items()}


@pytest.fixture(params=["mtp", "speculators", "dflash", "heterogeneous", "suffix"])
def arm(request, mimo, speculators):
    """Sources and the plan."""
    if request.param == "suffix":
        pytest.importorskip("arctic_inference", reason="the method needs it, and it is built from source")
    return {
        "mtp": ({"target": str(mimo)}, plan("mtp")),
        "speculators": ({"target": TARGET, "head": speculators}, plan("eagle3", draft="head")),
        "dflash": ({"target": TARGET, "head": "bundled:dflash"}, plan("dflash", draft="head")),
        "heterogeneous": (
            {"target": TARGET, "head": DRAFT},
            plan("draft_model", draft="head", options={"use_heterogeneous_vocab": True}),
        ),
        "suffix": ({"target": TARGET}, plan("suffix")),
    }[request.param]


def test_the_targets_tokens_come_out_and_all_accounts_agree(arm, prompts, expected):
    sources, asked = arm
    shop = VllmBackend({name: ModelSource(source) for name, source in sources.items()})
    try:
        engine = shop.arm(asked)
        config = engine.effective_config()
        assert config.requested == config.in_effect
        found = answered(engine, requests(prompts[:5]))
    finally:
        shop.close()
    traces = [decode(each.trace) for each in found.values()]
    assert all("counters" in reconciled(each) for each in found.values())
    assert {key: each.tokens for key, each in found.items()} == expected
    assert {kind for trace in traces for kind in trace.q_kind.tolist()} == {QKind.NONE, QKind.ONE_HOT}
    assert sum(trace.n_accepted for trace in traces) > 0
