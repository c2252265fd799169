"""Markov chains as models: an ONNX graph of one `Gather` over a table of logits, without layers or a cache.

The law of every token is the softmax of the table's row of the token before it, so a test of the law needs no reference
run.
"""

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from audit.selftest.chains import END, FIRST, PAD, VOCABULARY, Walk
from engine.backends.onnxruntime_genai.reconcile import Accounts, mismatches, speculation
from engine.backends.onnxruntime_genai.settings import PROGRAM, search_options
from engine.backends.process.engine_process import Failure, Launch, RestartedEngine
from engine.core.types import Request, SamplingParams

CONTEXT = 4096


def _graph(path, table):
    # imported here, because only the environment of the engine has it
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rows = numpy_helper.from_array(table.astype(np.float32), "table")
    shapes = {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "total"]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY])
    node = helper.make_node("Gather", ["table", "input_ids"], ["logits"], axis=0)
    graph = helper.make_graph([node], "chain", inputs, [output], [rows])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.save(model, path)


def _decoder(name):
    sizes = {"head_size": 1, "hidden_size": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    cache = {f"{kind}_{part}_names": f"{kind}.%d.{part}" for kind in ("past", "present") for part in ("key", "value")}
    return {
        "filename": name,
        "session_options": {"provider_options": [], "intra_op_num_threads": 1},
        **sizes,
        "num_hidden_layers": 0,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"}
        | {key: value for key, value in cache.items() if key.startswith("past")},
        "outputs": {"logits": "logits"} | {key: value for key, value in cache.items() if key.startswith("present")},
    }


def write(folder, given, *, drafts):
    """A folder that the engine loads."""
    folder.mkdir()
    _graph(folder / "target.onnx", given.target)
    model = {"type": "decoder", "vocab_size": VOCABULARY, "context_length": CONTEXT, "decoder": _decoder("target.onnx")}
    model |= {"bos_token_id": END, "eos_token_id": [END], "pad_token_id": PAD}
    if drafts:
        _graph(folder / "draft.onnx", given.draft)
        model["draft"] = _decoder("draft.onnx")
    document = {"model": model, "search": {"max_length": CONTEXT}}
    (folder / "genai_config.json").write_text(json.dumps(document))
    return folder


@contextmanager
def running(folder):
    """The engine on a folder, in a process of its own."""
    processes = RestartedEngine(
        PROGRAM, Launch(sys.executable, {"op": "start", "folder": str(folder)}, 300, 300, {}), 0
    )
    try:
        yield processes
    finally:
        processes.close()


@dataclass(frozen=True)
class CountedWalk:
    """A walk with its drafted and accepted tokens."""

    seen: Walk
    drafted: int
    accepted: int


def walk(processes, sampling, speculative, requests):
    """Chains of `max_new_tokens` tokens each, with accounts that agree."""
    before, token, drafted, accepted = [], [], 0, 0
    for at in range(requests):
        request = Request(f"r{at}", (FIRST + at % (VOCABULARY - FIRST),), sampling, at)
        search = search_options(request, VOCABULARY)
        message = {"id": request.id, "prompt": list(request.prompt), "search": search}
        message |= {"speculative": speculative, "ends": [], "rows": False}
        (answer,) = processes.answers([message])
        assert not isinstance(answer, Failure), answer
        head = answer.header
        most = speculative.get("max_draft_tokens", 0)
        accounts = Accounts(request.prompt, head["tokens"], head["sequence"], head["growth"], most, (END,))
        assert mismatches(accounts) == ()
        counts = speculation(accounts)
        drafted, accepted = drafted + counts["drafted"], accepted + counts["accepted"]
        before += [*request.prompt, *head["tokens"][:-1]]
        token += head["tokens"]
    return CountedWalk(Walk(np.array(before), np.array(token)), drafted, accepted)


def plain(temperature, tokens, **named):
    return SamplingParams(temperature=temperature, max_new_tokens=tokens, **named)
