"""Models of real sizes with random weights: our engine beside transformers, and beside what the memory allows.

The draft is the target's first layers. Random layers after them would change every token, so their outputs are scaled
down until the draft is accepted about as often as the bundled pair's; the table states the share. `int8` is the same
draft with rounded weights. A random model accepts it less often than a trained one; beside it an arm accepts its drafts
by a script, as often as the bundled pair's, so that its text is not the target's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine.core.types import Generation, Request, SamplingParams
from engine.models.decoder.lean import LeanModel
from engine.models.decoder.step_graphs import graphs_on
from engine.models.lean_weights import read_config
from engine.models.loading import DTYPES
from engine.models.numerics.interface import Affine
from engine.models.numerics.ordered.panels import panels
from engine.models.probe.choose import choose
from engine.models.probe.model_parts import parts_of
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.bench.engines import draft_constantly
from tests.bench.figures import Cell, Line, Runs, Table, measure, ratio
from tests.bench.setting import CountedModel, Engine, Setting
from tests.support.lean_tensors import build_weights

SHAPES = {
    "0.5 B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 2048,
    }
}
SMALL = {
    "tiny": SHAPES["0.5 B"]
    | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 512}
}
CUT = 4
"""Layers of the draft."""
QUIET = 0.01
"""What the outputs of the target's further layers are multiplied by."""
SCRIPTED = 4.8
"""Tokens per step of the bundled pair (medium, templated prompts, gamma 4), at which drafts are accepted in one arm."""
AT_SCRIPTED = f"int8 draft_model at {SCRIPTED}"
PROMPT = 64
BATCHES = (1, 8)
COPIED = 2**28
"""Bytes that are read to measure the memory of a CPU; of a GPU 64 times as many."""
PASSES = 8
"""Times that a round reads them."""
MEMORY = "memory"
"""The arm that reads memory."""


@dataclass(frozen=True)
class Networks:
    """Target and draft as transformers has them."""

    target: Any
    draft: Any


def run(setting: Setting) -> Iterator[Table]:
    for name, shape in (SMALL if setting.quick else SHAPES).items():
        networks = random_networks(shape, setting)
        target = counted(networks.target, setting, setting.mode)
        drafts = {"draft_model": counted(networks.draft, setting, setting.draft_mode)}
        if setting.device == "cpu":
            drafts["int8 draft_model"] = counted(networks.draft, setting, "int8")
        requests = random_requests(setting, shape["vocab_size"])
        read = fastest_reading(setting.device)
        jobs: dict[str, Callable[[], Any]] = {MEMORY: read.job}
        for rows in BATCHES:
            jobs[f"ours plain, batch {rows}"] = _ours(target, None, 0, requests[:rows])
            for method, draft in drafts.items():
                jobs[f"ours {method}, batch {rows}"] = _ours(target, draft, setting.gamma, requests[:rows])
            if "int8 draft_model" in drafts:
                draft = drafts["int8 draft_model"]
                jobs[f"ours {AT_SCRIPTED}, batch {rows}"] = _ours(
                    target, draft, setting.gamma, requests[:rows], SCRIPTED
                )
            jobs[f"transformers plain, batch {rows}"] = _theirs(networks, {}, requests[:rows])
        jobs["transformers draft_model, batch 1"] = _theirs(networks, {"assistant_model": networks.draft}, requests[:1])
        passes = read.bytes / weight_bytes(networks.target)
        lines = _lines(measure(jobs, setting), passes)
        yield Table(f"{name}, {setting.dtype}, {setting.mode}", tuple(lines), (f"memory read by: {read.name}",))


def random_networks(shape: dict[str, int], setting: Setting) -> Networks:
    """The same weights on every machine with this torch; the draft shares the target's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(**shape, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    target = LlamaForCausalLM(config).to(DTYPES[setting.dtype]).eval().requires_grad_(False)
    for layer in target.model.layers[CUT:]:
        layer.self_attn.o_proj.weight.mul_(QUIET)
        layer.mlp.down_proj.weight.mul_(QUIET)
    target.to(setting.device)
    cut = copy.deepcopy(config)
    cut.num_hidden_layers = CUT
    with torch.device("meta"):
        draft = LlamaForCausalLM(cut).to(DTYPES[setting.dtype]).eval()
    state = {name: each for name, each in target.state_dict().items() if name in draft.state_dict()}
    draft.load_state_dict(state, assign=True)
    draft.tie_weights()
    draft.model.rotary_emb = target.model.rotary_emb
    draft_constantly(draft, setting.gamma)
    return Networks(target, draft)


def lean_from(network: Any, setting: Setting, mode: str) -> LeanModel:
    """Our forward over a network's weights, in a mode that is probed as for any model."""
    config, device = read_config(network.config.to_dict(), "config.json"), torch.device(setting.device)
    weights = build_weights(config, network.state_dict(), DTYPES[setting.dtype], device)
    chosen = choose(mode, parts_of(config, weights), "random model")
    return LeanModel(config, weights, numerics=chosen.numerics, graphs=graphs_on(device))


def counted(network: Any, setting: Setting, mode: str) -> CountedModel:
    """The same, and the time that it reads prompts."""
    return CountedModel(lean_from(network, setting, mode), setting.clock)


def random_requests(setting: Setting, vocabulary: int) -> list[Request]:
    rng = np.random.default_rng(7)
    sampling = SamplingParams(max_new_tokens=setting.length, ignore_eos=True)
    prompts = rng.integers(3, vocabulary, (max(BATCHES), PROMPT)).tolist()
    return [Request(f"r{i}", tuple(prompt), sampling, stream_of(f"r{i}")) for i, prompt in enumerate(prompts)]


def weight_bytes(network: Any) -> int:
    """Bytes that plain decoding of one token reads: all weights, the tied matrix once."""
    return sum(each.numel() * each.element_size() for each in network.parameters())


@dataclass(frozen=True)
class Reading:
    """A way to read memory from its start to its end, and how many bytes the job moves."""

    name: str
    job: Callable[[], Any]
    bytes: int


def fastest_reading(device: str) -> Reading:
    """Of a copy, a sum and a product with one row; a round repeats it, because the speed of memory varies over time."""
    there = torch.device(device)
    size = COPIED * (64 if there.type == "cuda" else 1)
    source, copied = (torch.ones(size // 4, device=there) for _ in range(2))
    ways = [Reading("copy", lambda: copied.copy_(source), 2 * size), Reading("sum", source.sum, size)]
    multiply = panels(Affine(source.view(-1, 1024), None))
    if multiply is not None:
        row = torch.ones(1, 1024)
        ways.append(Reading("product", lambda: multiply(row), size))
    best = max(ways, key=lambda each: each.bytes / _best(each.job, there))

    def job() -> None:
        for _ in range(PASSES):
            best.job()
        _wait(there)

    return Reading(best.name, job, PASSES * best.bytes)


def _best(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest of five runs after one."""
    best = float("inf")
    for _ in range(6):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Found:
    """What one job produced; shares of accepted drafts are known of our engine only."""

    outputs: tuple[tuple[int, ...], ...]
    accepted: float | None = None
    reading: float = 0.0
    """Seconds spent on prompts."""


def _ours(
    target: CountedModel,
    draft: CountedModel | None,
    gamma: int,
    requests: Sequence[Request],
    scripted: float | None = None,
) -> Callable[[], Found]:
    proposer = "draft_model" if draft else None
    engine = Engine(target, draft, proposer, gamma, rows=len(requests), scripted=scripted)
    models = [target, draft] if draft else [target]

    def job() -> Found:
        for each in models:
            each.take()
        made = {each.request.id: each for each in engine.run(requests)}
        reading = sum(each.take().prompt_seconds for each in models)
        return Found(tuple(made[each.id].tokens for each in requests), _accepted(list(made.values())), reading)

    return job


def _accepted(generations: Sequence[Generation]) -> float | None:
    traces = [decode(each.trace) for each in generations]
    drafted = sum(int(each.n_drafted.sum()) for each in traces)
    return sum(each.n_accepted for each in traces) / drafted if drafted else None


def _theirs(networks: Networks, options: dict[str, Any], requests: Sequence[Request]) -> Callable[[], Found]:
    @torch.inference_mode()
    def job() -> Found:
        prompts = torch.tensor([each.prompt for each in requests], device=networks.target.device)
        length = requests[0].sampling.max_new_tokens
        found = networks.target.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            **options,
        )
        return Found(tuple(tuple(each) for each in found[:, PROMPT:].tolist()))

    return job


def _tokens(found: Found) -> int:
    return sum(len(each) for each in found.outputs)


def _equal(own: Sequence[tuple[int, ...]], theirs: Sequence[tuple[int, ...]]) -> str:
    return f"{sum(map(tuple.__eq__, own, theirs))}/{len(own)}"


def _lines(runs: Runs, passes: float) -> Iterator[Line]:
    """`passes`: how often the arm that reads memory reads as many bytes as there are weights."""
    arms = [arm for arm in runs.runs if arm != MEMORY]
    limit = [passes / each.seconds for each in runs.runs[MEMORY]]
    rates = {arm: runs.rates(arm, _tokens) for arm in arms}
    decoding = {arm: runs.rates(arm, _tokens, lambda found: found.reading) for arm in arms}
    for arm, own in rates.items():
        side, _, rest = arm.partition(" ")
        method, _, batch = rest.partition(", ")
        theirs = f"transformers {rest.removeprefix('int8 ')}"
        plain = rates[f"{side} plain, {batch}"]
        first: Found = runs.first(arm)
        reference: Found = runs.first(f"transformers plain, {batch}")
        figures: dict[str, Cell] = {
            "tokens/s": ratio(own, [1.0] * len(own)),
            "x own plain": ratio(own, plain) if method != "plain" else None,
            "x transformers, same method": ratio(own, rates[theirs]) if side == "ours" and theirs in rates else None,
            "x transformers plain": ratio(own, rates[f"transformers plain, {batch}"]),
            "x own plain, decoding": ratio(decoding[arm], decoding[f"{side} plain, {batch}"])
            if side == "ours"
            else None,
            "of the memory's limit": ratio(decoding[arm], limit) if rest == "plain, batch 1" else None,
            "drafts accepted": first.accepted,
            "outputs equal": None if method == AT_SCRIPTED else _equal(first.outputs, reference.outputs),
        }
        yield Line(arm, figures)
