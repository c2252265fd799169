"""This machine's logits and tokens against the checked-in transcripts, bit by bit."""

import shutil
from dataclasses import replace

import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

from engine.models.files.folder import open_folder
from tests.engine.golden.transcripts import (
    HOME,
    WRITE,
    Arm,
    bundled,
    decoded,
    difference,
    differences,
    exact_model,
    fast_model,
    read,
    stale,
)
from tests.engine.numerics.exact_models import by_chains, by_trees
from tests.support.tiers import fast_first

NAMES = ("target", "draft")
WEIGHT = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=fast_first(NAMES[::-1]))
def golden(request):
    found = read(request.param)
    outdated = stale(found, bundled(request.param))
    if outdated:
        pytest.fail(outdated)
    return found


def model_of(golden):
    return exact_model(bundled(golden.model.partition(":")[2]))


def hexadecimal(rows):
    values = (blake3(row.tobytes()).digest(8) for row in rows.numpy())
    return tuple(f"{int.from_bytes(value, 'little'):016x}" for value in values)


@pytest.mark.parametrize("name", NAMES)
def test_the_transcripts_belong_to_the_bundled_weights(name):
    assert stale(read(name), bundled(name)) is None


def test_other_weights_ask_for_new_transcripts():
    message = stale(read("target"), bundled("draft"))
    assert message is not None
    assert WRITE in message


def test_there_are_greedy_and_sampled_transcripts_that_differ(golden):
    temperatures = [each.temperature for each in golden.transcripts]
    assert temperatures.count(0.0) == len(temperatures) / 2 == 5
    assert all(len(each.tokens) == len(each.digests) >= 32 for each in golden.transcripts)
    pairs = zip(golden.transcripts[::2], golden.transcripts[1::2], strict=True)
    assert sum(greedy.tokens != sampled.tokens for greedy, sampled in pairs) >= 3


@pytest.mark.medium
def test_plain_decoding_gives_the_transcripts(golden):
    found = decoded(Arm(model_of(golden)), golden.transcripts)
    assert differences(golden.transcripts, found) == []


@pytest.mark.medium
def test_speculative_batches_give_the_transcripts(golden):
    drafting = golden.model == "bundled:target"
    draft = fast_model(bundled("draft")) if drafting else None
    arm = Arm(model_of(golden), "draft_model" if drafting else "ngram", draft, rows=4)
    assert differences(golden.transcripts, decoded(arm, golden.transcripts)) == []


@pytest.mark.medium
@pytest.mark.parametrize("how", ["whole", "trees"])
def test_teacher_forced_rows_have_the_digests(golden, how):
    model, case = model_of(golden), golden.transcripts[1]
    tokens = [*case.prompt, *case.tokens]
    rows = by_chains(model, tokens, len(tokens)) if how == "whole" else by_trees(model, tokens)
    own = hexadecimal(rows[len(case.prompt) - 1 :])
    # trees take whole steps, so the last few positions may be missing; the row after the last token has no digest
    count = min(len(own), len(case.digests))
    assert count > 30
    assert own[:count] == case.digests[:count]


@pytest.mark.medium
def test_numerics_fast_does_not_give_the_digests():
    golden = read("target")
    cases = golden.transcripts[:1]
    found = decoded(Arm(fast_model(bundled("target"))), cases)
    assert "logits" in differences(cases, found)[0]


@pytest.mark.medium
def test_one_changed_weight_is_seen(tmp_path):
    shutil.copytree(bundled("target").path, tmp_path / "broken")
    path = tmp_path / "broken" / "model.safetensors"
    weights = load_file(path)
    row = weights[WEIGHT][3]
    place = int(row.abs().argmax())
    # five low bits of 23: sixteen times the last bit, where the grid's step is four times
    row.view(torch.int32)[place] ^= 0b10000
    save_file(weights, path, metadata={"format": "pt"})
    broken = open_folder(tmp_path / "broken", "broken")
    golden = read("target")
    assert stale(golden, broken) is not None
    found = decoded(Arm(exact_model(broken)), golden.transcripts[:1])
    assert differences(golden.transcripts[:1], found)


def test_a_changed_digest_or_token_is_named():
    case = read("draft").transcripts[0]
    digests, tokens = list(case.digests), list(case.tokens)
    digests[7] = f"{int(digests[7], 16) ^ 1:016x}"
    tokens[9] += 1
    place = len(case.prompt)
    assert difference(case, case) is None
    assert difference(case, replace(case, digests=tuple(digests))).startswith(
        f"{case.id}, position {place + 7}: logits"
    )
    assert difference(case, replace(case, tokens=tuple(tokens))).startswith(f"{case.id}, position {place + 9}: token")
    assert "39 tokens, not 40" in difference(case, replace(case, tokens=case.tokens[1:]))


def test_the_files_are_small():
    assert all((HOME / f"{name}.json").stat().st_size < 100_000 for name in NAMES)
