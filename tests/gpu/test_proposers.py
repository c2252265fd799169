"""Every proposer with a bundled head or draft, on a GPU: plain decoding's tokens, and its bits where promised."""

import json
from pathlib import Path

import pytest

from engine import proposers, verify
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.heads.loading import load_head
from engine.models.loading import load_model
from engine.models.numerics.interface import Invariance
from engine.proposers.interface import PlainProposer, ProposerParts, TargetSide
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of

pytestmark = pytest.mark.gpu
PROMPTS = Path(__file__).parents[2] / "suites" / "prompts"
HEADS = ("eagle", "eagle2", "eagle3", "medusa", "mtp", "mlp_speculator", "dflash", "ddtree")
FOLDERS = {"eagle2": "eagle", "ddtree": "dflash"}
OWN = ("draft_model", "ngram", "suffix", "specinfer", "sequoia", "lookahead", "cascade")
ROWS, CAPACITY, LENGTH, GAMMA = 3, 400, 40, 4


@pytest.fixture(scope="module")
def models():
    return {name: load_model(f"bundled:{name}", numerics="auto", device="cuda") for name in ("target", "draft")}


def requests(tokenizer, temperature):
    sampling = SamplingParams(temperature, max_new_tokens=LENGTH, ignore_eos=True, seed=5)
    for i, line in enumerate((PROMPTS / "tools.jsonl").read_text().splitlines()[:6]):
        text = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
        prompt = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])[:200]
        yield Request(f"r{i}", prompt, sampling, stream_of(f"r{i}"))


def decoded(models, protocol, name=None, rows=ROWS):
    target, verifier = models["target"].model, verify.load(protocol)
    cache = target.new_cache(rows, CAPACITY)
    head = load_head(f"bundled:{FOLDERS.get(name, name)}").head if name in HEADS else None
    side, draft = TargetSide(target, cache), models["draft"].model
    parts = ProposerParts(
        rows, CAPACITY, verifier.facts.draft_rule, draw, (), draft, {}, (draft,), target=side, head=head, gamma=GAMMA
    )
    proposer = proposers.build(name, parts) if name else PlainProposer()
    options = LoopOptions(rows, GAMMA if name else 0, CAPACITY, RecordLevel.SCALARS)
    loop = Loop(target, proposer, verifier, lambda _: "", options, cache=cache)
    wanted = list(requests(models["target"].tokenizer, 0.0 if protocol is Protocol.GREEDY else 0.8))
    return {each.request.id: decode(each.trace) for each in loop.run(wanted)}


@pytest.fixture(scope="module")
def plain(models):
    return {protocol: decoded(models, protocol, rows=1) for protocol in (Protocol.GREEDY, Protocol.GUMBEL)}


@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.GUMBEL])
@pytest.mark.parametrize("name", [*OWN, *HEADS])
def test_the_tokens_are_plain_decoding_s(name, protocol, models, plain):
    found = decoded(models, protocol, name)
    assert sum(each.n_accepted for each in found.values()) > 10
    promised = models["target"].numerics.promises
    for request, trace in found.items():
        assert trace.tokens == plain[protocol][request].tokens
        if promised >= Invariance.TREE:
            assert (trace.logits_digest == plain[protocol][request].logits_digest).all()


def test_every_proposer_is_tried_or_left_out_for_a_reason():
    left = {
        "early_exit": "needs a target of its own",
        "layer_skip": "needs a set of layers that fits the target",
        "online": "trains its draft on the CPU and says so",
    }
    assert set(proposers.REGISTRY) == {*OWN, *HEADS, *left}
