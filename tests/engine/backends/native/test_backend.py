"""The native backend over tiny random models saved to a folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.neighbour import Mixed, NeighbourEngine, contrasting
from engine.core.errors import CapacityError, InvalidRequest, ModelError
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.models.loading import load_model
from engine.record.trace import COLUMNS, decode
from engine.train import recipe, trainer
from engine.train.corpus import train_tokenizer
from tests.support.random_models import save
from tests.support.tiers import slow_unless

VOCABULARY = 300
TEXTS = ["the quick brown fox jumps over the lazy dog. " * 4, '{"name": "fox", "age": 12}\n' * 4]
TARGET = recipe.ModelRecipe(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, context=96)
DRAFT = recipe.ModelRecipe(layers=1, hidden=16, heads=2, kv_heads=1, ffn=24, context=48)
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_new_tokens=24, seed=6)
MESSAGES = ({"role": "user", "content": "the fox?"},)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two untrained models with one tokenizer."""
    folder = tmp_path_factory.mktemp("family")
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    for seed, (name, size) in enumerate((("target", TARGET), ("draft", DRAFT))):
        save(trainer.new_model(size, VOCABULARY, seed), tokenizer, folder / name)
    return folder


@pytest.fixture(scope="module")
def backend(home):
    return open_backend("native", sources(home))


def sources(home, **others):
    named = {"target": "target", "draft": "draft"} | others
    return {name: ModelSource(source, base=home) for name, source in named.items()}


def plan(protocol=Protocol.GREEDY, proposer="draft_model", **changes):
    return EngineSpec(protocol, proposer, 4, "draft" if proposer == "draft_model" else None, **changes)


def requests(engine, sampling):
    texts = ("the quick", "dog", "the lazy dog. the lazy", '{"name"', "over the quick brown fox")
    return [Request(text, engine.encode(Prompt(text=text)), sampling, i) for i, text in enumerate(texts)]


def run(engine, sampling):
    return {each.request.id: each for each in engine.generate(requests(engine, sampling))}


def outputs(generations):
    return {name: (each.tokens, each.text, each.finish_reason) for name, each in generations.items()}


@pytest.mark.medium
@pytest.mark.parametrize(("protocol", "sampling"), [(Protocol.GREEDY, GREEDY), (Protocol.GUMBEL, SAMPLED)])
@pytest.mark.parametrize("proposer", ["draft_model", "ngram"])
@pytest.mark.parametrize("rows", slow_unless([1, 3], [3]))
def test_speculation_gives_the_baseline_s_tokens(backend, protocol, sampling, proposer, rows):
    candidate = run(backend.arm(plan(protocol, proposer, rows=rows)), sampling)
    assert outputs(candidate) == outputs(run(backend.arm(plan(protocol, None)), sampling))
    assert sum(decode(each.trace).n_drafted.sum() for each in candidate.values()) > 0


@pytest.mark.medium
@pytest.mark.parametrize(("protocol", "sampling"), [(Protocol.GREEDY, GREEDY), (Protocol.CHAIN, SAMPLED)])
def test_a_mixed_batch_changes_no_bit(protocol, sampling):
    # not the tiny models: the kernels of some machines break their promise at such sizes, and the engine refuses
    target = ModelSource("bundled:target", numerics="tiled")
    models = {"target": target, "draft": replace(target, source="bundled:draft")}
    engine = open_backend("native", models).arm(plan(protocol, rows=3))
    alone = run(engine, sampling)
    mixed = NeighbourEngine(engine, Mixed(3, contrasting(sampling)))
    for generation in mixed.generate(requests(engine, sampling)):
        ours, theirs = decode(generation.trace), decode(alone[generation.request.id].trace)
        for name in (each for each in COLUMNS if each not in ("draft_us", "verify_us", "batch")):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        assert (ours.header.facts["unlike"] != [], theirs.header.facts["unlike"]) == (True, [])


@pytest.mark.medium
def test_the_recorded_rows_are_the_model_s(backend, home):
    from transformers import LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(home / "target").eval()
    for generation in run(backend.arm(plan(Protocol.CHAIN, rows=3)), SAMPLED).values():
        trace, prompt = decode(generation.trace), generation.request.prompt
        with torch.no_grad():
            whole = network(torch.tensor([[*prompt, *generation.tokens]])).logits[0].numpy()
        np.testing.assert_allclose(trace.logits, whole[len(prompt) - 1 : -1], atol=2e-4)


def test_text_leaves_out_special_tokens_and_nothing_else(backend, home):
    tokenizer = load_model("target", base=home).tokenizer
    for generation in run(backend.arm(plan()), GREEDY).values():
        assert generation.text == tokenizer.decode(list(generation.tokens), skip_special_tokens=True)


def test_prompts_by_template_and_as_text(backend, home):
    engine, tokenizer = backend.arm(plan()), load_model("target", base=home).tokenizer
    expected = tokenizer.apply_chat_template(list(MESSAGES), add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(list(engine.encode(Prompt(messages=MESSAGES)))) == expected
    assert expected.startswith("<|begin|><|user|>\nthe fox?")
    assert "# Tools" in tokenizer.decode(list(engine.encode(Prompt(messages=MESSAGES, tools=({"type": "function"},)))))
    assert engine.encode(Prompt(text="the fox")) == tuple(tokenizer("the fox")["input_ids"])


def test_a_model_without_a_template_takes_raw_text_only(home, tmp_path):
    model = load_model("target", base=home)
    tokenizer = model.tokenizer
    tokenizer.chat_template = None
    trainer.new_model(TARGET, VOCABULARY, 0).save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    engine = open_backend("native", {"target": ModelSource("plain", base=tmp_path)}).arm(plan(proposer=None))
    assert engine.encode(Prompt(text="the"))
    with pytest.raises(ModelError, match="plain: no chat template"):
        engine.encode(Prompt(messages=MESSAGES))


def test_the_configuration_says_what_runs_and_is_json(backend):
    models = {facts.name: facts for facts in backend.models()}
    config = backend.arm(plan(Protocol.CHAIN, rows=3, fault="argmax_draft_soft_q")).effective_config().to_json()
    assert config["target"]["model_sha256"] == models["target"].sha256
    assert config["draft"]["model_sha256"] == models["draft"].sha256
    assert (config["proposer"], config["gamma"], config["protocol"]) == ("draft_model", 4, "chain")
    assert (config["rows"], config["record"], config["lossless"]) == (3, "full", True)
    assert config["proposer_shape"] == "chain"
    assert (config["numerics"]["requested"], config["numerics"]["probe"]["passed"]) == ("auto", True)
    assert config["draft_numerics"] == {"mode": "ordered", "requested": "drafting", "promises": "none"}
    assert config["fault"] == "argmax_draft_soft_q"
    assert json.loads(json.dumps(config)) == config
    ngram = EngineSpec(Protocol.GUMBEL, "ngram", 2, options={"max_ngram": 3})
    config = backend.arm(ngram).effective_config().to_json()
    assert config["proposer_options"] == {"min_ngram": 2, "max_ngram": 3}
    assert config["draft"] is None
    assert backend.arm(plan(proposer=None)).effective_config().proposer == "plain"


@pytest.mark.parametrize(
    ("level", "evidence"),
    [(RecordLevel.TOKENS, 0), (RecordLevel.SCALARS, 1), (RecordLevel.TOPK, 3), (RecordLevel.FULL, 4)],
)
def test_the_record_level_decides_what_may_be_claimed(backend, level, evidence):
    engine = backend.arm(plan(level=level))
    assert engine.evidence_level() == evidence
    assert {decode(each.trace).header.level for each in run(engine, GREEDY).values()} == {level}


def test_models_are_named_by_their_digests(backend, home):
    models = {facts.name: facts for facts in backend.models()}
    assert set(models) == {"target", "draft"}
    assert models["target"].sha256 != models["draft"].sha256
    assert models["target"].tokenizer_sha256 == models["draft"].tokenizer_sha256
    assert models["target"].revision is None
    assert "model.safetensors" in models["target"].manifest["files"]
    json.dumps([dict(each.manifest) for each in models.values()])


def test_a_request_that_does_not_fit_is_refused_before_anything_runs(backend):
    engine = backend.arm(plan())
    fits = Request("fits", (5,) * 72, GREEDY)
    engine.require([fits])
    assert len(next(iter(engine.generate([fits]))).tokens) <= 24
    long = Request("too long", (5,) * 73, GREEDY)
    with pytest.raises(CapacityError, match=r"request too long: prompt of 73 tokens .* context of 96; shorten"):
        engine.require([fits, long])
    with pytest.raises(CapacityError):
        next(iter(engine.generate([fits, long])))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", ((VOCABULARY, 1.0),)),
        ("bad_words", ((3, -1),)),
        ("stop_token_ids", (4, 4000)),
        ("prompt", (3, VOCABULARY)),
    ],
)
def test_tokens_that_do_not_exist_are_refused_by_name(backend, name, value):
    request = Request("r", (1, 2), GREEDY)
    broken = (
        replace(request, prompt=value)
        if name == "prompt"
        else replace(request, sampling=replace(GREEDY, **{name: value}))
    )
    with pytest.raises(InvalidRequest, match=f"request r: {name} names token"):
        backend.arm(plan()).require([broken])


def test_no_requests_run_nothing(backend):
    assert list(backend.arm(plan()).generate([])) == []


def test_a_prompt_longer_than_the_draft_s_context_is_served_without_drafts(backend):
    engine = backend.arm(plan())
    (generation,) = engine.generate([Request("r", tuple(range(10, 70)), GREEDY)])
    assert decode(generation.trace).n_drafted.sum() == 0
    (same,) = backend.arm(plan(proposer=None)).generate([Request("r", tuple(range(10, 70)), GREEDY)])
    assert generation.tokens == same.tokens


def test_a_draft_with_another_tokenizer_is_refused(home, tmp_path):
    trainer.new_model(DRAFT, VOCABULARY, 1).save_pretrained(tmp_path / "other")
    train_tokenizer(["zebra crossing zebra crossing"] * 9, VOCABULARY).save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match=r"other cannot draft for target: .*use a draft with the target's tokenizer"):
        open_backend("native", sources(home, draft=str(tmp_path / "other")))


def padded(folder, tokenizer, recipe_, size, seed):
    """A random model of the family with `size` logits, some of which stand for no token."""
    save(trainer.new_model(recipe_, size, seed), tokenizer, folder)
    return str(folder)


@pytest.mark.medium
@pytest.mark.parametrize(("ours", "theirs"), [(VOCABULARY, VOCABULARY + 8), (VOCABULARY + 12, VOCABULARY + 4)])
@pytest.mark.parametrize(
    ("protocol", "sampling"), [(Protocol.GREEDY, GREEDY), (Protocol.GUMBEL, SAMPLED), (Protocol.CHAIN, SAMPLED)]
)
def test_models_that_pad_one_vocabulary_differently_speculate(tmp_path, ours, theirs, protocol, sampling):
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    target = padded(tmp_path / "target", tokenizer, TARGET, ours, 0)
    draft = padded(tmp_path / "draft", tokenizer, DRAFT, theirs, 1)
    engine = open_backend("native", sources(tmp_path, target=target, draft=draft))
    done = run(engine.arm(plan(protocol, level=RecordLevel.FULL)), sampling)
    records = [decode(generation.trace) for generation in done.values()]
    drafted = np.concatenate([record.node_token for record in records])
    assert drafted.size
    assert drafted.max() < min(ours, theirs)
    if protocol is not Protocol.CHAIN:
        assert outputs(done) == outputs(run(engine.arm(plan(protocol, None)), sampling))


def test_a_draft_without_a_tokenizer_needs_the_target_s_number_of_logits(home, tmp_path):
    trainer.new_model(DRAFT, VOCABULARY + 8, 1).save_pretrained(tmp_path / "wide")
    with pytest.raises(ModelError, match=r"wide: 308 logits, but the target has 300, and no tokenizer shows"):
        open_backend("native", sources(home, draft=str(tmp_path / "wide")))


def test_a_target_without_a_tokenizer_is_refused(tmp_path):
    trainer.new_model(DRAFT, VOCABULARY, 1).save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"bare: the target has no tokenizer; add tokenizer.json"):
        open_backend("native", {"target": ModelSource("bare", base=tmp_path)})


def test_wrong_plans_are_refused_when_the_arm_is_made(backend):
    for wrong, message in (
        (EngineSpec(Protocol.GREEDY, "draft_model", 4, "small"), "no model named 'small'"),
        (EngineSpec(Protocol.GREEDY, "draft_model", 4), "needs a draft model"),
        (EngineSpec(Protocol.GREEDY, "nonesuch", 4), "unknown proposer"),
        (EngineSpec(Protocol.GREEDY, "ngram", 4, options={"n": 3}), "has no option 'n'"),
        (EngineSpec(Protocol.GREEDY, fault="nonesuch"), "unknown fault"),
        (EngineSpec(Protocol.CHAIN, "lookahead", 4), "the chain rule cannot verify the trees of proposer lookahead"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            backend.arm(wrong)


@pytest.mark.medium
def test_trees_that_the_target_s_numerics_have_no_room_for_are_refused_when_the_arm_is_made():
    tiled = open_backend("native", {"target": ModelSource("bundled:target", numerics="tiled")})
    tiled.arm(EngineSpec(Protocol.GREEDY, "lookahead", 36))
    with pytest.raises(InvalidRequest, match="68 tokens read beside each other in one step, tiled numerics have room"):
        tiled.arm(EngineSpec(Protocol.GREEDY, "lookahead", 40))


# the memory of finished requests


SUFFIX = {"cached_requests": 8}


def drafted_tokens(engine):
    return sum(int(decode(each.trace).n_drafted.sum()) for each in run(engine, GREEDY).values())


@pytest.mark.medium
def test_an_arm_remembers_finished_requests_until_it_is_told_to_forget(backend):
    engine = backend.arm(plan(proposer="suffix", options=SUFFIX))
    empty = engine.memory()
    fresh, after = drafted_tokens(engine), engine.memory()
    assert engine.effective_config().facts["shared_memory"] == after != empty
    assert drafted_tokens(engine) > fresh
    engine.forget()
    assert engine.memory() == empty
    assert drafted_tokens(engine) == fresh
    assert engine.memory() == after


def test_arms_do_not_share_a_memory(backend):
    first, second = (backend.arm(plan(proposer="suffix", options=SUFFIX)) for _ in range(2))
    before = second.memory()
    run(first, GREEDY)
    assert second.memory() == before != first.memory()


@pytest.mark.parametrize("changes", [{"proposer": None}, {"proposer": "suffix"}, {"proposer": "ngram"}])
def test_other_proposers_have_no_memory(backend, changes):
    engine = backend.arm(plan(**changes))
    run(engine, GREEDY)
    engine.forget()
    assert engine.memory() is None
