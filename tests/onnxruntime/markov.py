"""Markov chains as models: an ONNX graph of one `Gather` over a table of logits, without layers or a cache.

The law of every token is the softmax of the table's row of the token before it, so a test of the law needs no reference
run.
"""

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from engine.backends.converted.processes import RestartedEngine
from engine.backends.engine_process import Failure, Launch
from engine.backends.onnxruntime_genai.program import PROGRAM
from engine.backends.onnxruntime_genai.reconcile import Accounts, mismatches, speculation
from engine.backends.onnxruntime_genai.sampling import search_options
from engine.core.types import Request, SamplingParams
from engine.sampling.transforms import transform

VOCABULARY, CONTEXT, NEVER = 16, 4096, -1e4
END, PAD, FIRST = 0, 1, 2
"""The two tokens that are never drawn, and the first that is."""


@dataclass(frozen=True)
class Tables:
    """[V, V] logits of the token after each one."""

    target: np.ndarray
    draft: np.ndarray


def tables(seed, distance=1.5):
    """The draft is the target with noise of that standard deviation on its logits."""
    generator = np.random.default_rng(seed)
    target = generator.normal(size=(VOCABULARY, VOCABULARY)) * 1.5
    draft = target + generator.normal(size=target.shape) * distance
    for table in (target, draft):
        table[:, :FIRST] = NEVER
    return Tables(target, draft)


def softmax(table):
    weights = np.exp(table - table.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def leaking(given, share):
    """The target's law with a share of the draft's in it."""
    mixed = (1 - share) * softmax(given.target) + share * softmax(given.draft)
    logits = np.log(np.maximum(mixed, np.finfo(float).tiny))
    return replace(given, target=np.maximum(logits, NEVER))


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
class Walk:
    """[E] each token and the one before it; drafted and accepted tokens."""

    before: np.ndarray
    token: np.ndarray
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
    return Walk(np.array(before), np.array(token), drafted, accepted)


def law(table, sampling):
    """[V, V] the exact law after each token, by this project's transforms."""
    return np.stack([transform(row, [at], 1, sampling, (END,)).p for at, row in enumerate(table.astype(np.float32))])


def plain(temperature, tokens, **named):
    return SamplingParams(temperature=temperature, max_new_tokens=tokens, **named)
