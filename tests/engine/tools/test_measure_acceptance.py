"""The measurement against an acceptance vector that is known, and costs from times that are known."""

import json

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import PromptTokenizer
from engine.backends.native.backend import NativeEngine
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.models.probe.choose import ModelWithNumerics, scripted
from engine.models.scripted import ScriptedModel
from engine.proposers.options import rates_of
from engine.proposers.tree_planning import (
    PlanningCosts,
    TreeShape,
    best_shape,
    chain_shape,
    expected_tokens,
    k_ary_shape,
)
from engine.tools.measure_acceptance import (
    AcceptanceTrials,
    CostGrid,
    ShapeTiming,
    measure_times,
    measure_trials,
    planning_costs,
    probe_shape,
)
from engine.tools.plan_tree import main, make_plan, rates_text, report

VOCABULARY = 8
WIDTH, LEVELS = 3, 2
STORED = ((0.545, 0.030, 0.010, 0.040), (0.726, 0.016, 0.065, 0.0), (0.780, 0.0, 0.020, 0.020))
"""Measured on the small bundled pair at temperature 0.6."""
COSTS = PlanningCosts(30.0, (1, 33), (1000.0, 1100.0), 2.0)


def wanted_script(prefix):
    """Uniform on as many tokens as the prompt's first token says."""
    return np.where(np.arange(VOCABULARY) < max(prefix[0], 1), 0.0, -np.inf)


def known_rates(wanted):
    """A draft that is uniform on everything: the first wanted token in a random order is the accepted one.

    A wanted token has p >= q and is always accepted, any other has p = 0.
    """
    rates, left = [], 1.0
    for rank in range(WIDTH):
        chance = wanted / (VOCABULARY - rank)
        rates.append(left * chance)
        left *= 1.0 - chance
    return rates


def drafting(shape):
    target = ModelWithNumerics(ScriptedModel(wanted_script, VOCABULARY), scripted())
    draft = ModelWithNumerics(ScriptedModel(lambda prefix: np.zeros(VOCABULARY), VOCABULARY), scripted())
    options = {} if shape is None else {"shape": ",".join(map(str, shape.parents))}
    kind, size = ("sequoia", len(shape)) if shape is not None else (None, 0)
    plan = EngineSpec(Protocol.TREE, kind, size, "draft", options, rows=4, level=RecordLevel.TOKENS)
    return NativeEngine(target, [draft], PromptTokenizer(lambda prompt: [0], lambda tokens: ""), plan)


def requests(firsts, seed=1, tokens=40):
    sampling = SamplingParams(temperature=1.0, max_new_tokens=tokens, seed=seed)
    return [Request(f"r{number}", (first, 0), sampling, number) for number, first in enumerate(firsts)]


def measured(firsts, seed=1, tokens=40):
    return measure_trials(drafting, requests(firsts, seed, tokens), WIDTH, LEVELS)


@pytest.mark.medium
def test_a_known_vector_is_recovered_within_its_stated_error():
    """All ranks, pooled and by level, within 4 standard errors: a chance of 1 in 1000 over the 9 of them to fail."""
    trials, wanted = measured([3] * 40), known_rates(3)
    for estimates in (trials.by_rank(), *trials.by_level()):
        for estimate, known in zip(estimates, wanted, strict=True):
            assert abs(estimate.rate - known) < 4 * estimate.error
            assert estimate.error < 0.05


@pytest.mark.medium
def test_another_vector_is_not_within_the_error():
    """The negative control: a target that wants one token more."""
    trials = measured([3] * 40)
    assert abs(trials.by_rank()[0].rate - known_rates(4)[0]) > 5 * trials.by_rank()[0].error


@pytest.mark.slow
def test_stated_errors_are_as_large_as_the_scatter():
    """Of 30 repetitions; the mean square is chi-square / 30 and leaves (0.45, 1.9) once in 400 times."""
    found = [measured([3] * 12, seed, 20).by_rank()[0] for seed in range(30)]
    scores = [(each.rate - known_rates(3)[0]) / each.error for each in found]
    assert 0.45 < np.mean(np.square(scores)) < 1.9


def rise(firsts):
    """How much oftener the first child is accepted at level 2 than at level 1: 99.8 % bootstrap interval over prompts.

    The levels are paired, as they come from the same prompts.
    """
    trials, random = measured(firsts), np.random.default_rng(0)
    found = []
    for _ in range(2000):
        chosen = random.integers(len(firsts), size=len(firsts))
        first, second = AcceptanceTrials(trials.accepted[chosen], trials.tried[chosen]).by_level()
        found.append(second[0].rate - first[0].rate)
    return np.quantile(found, [0.001, 0.999])


@pytest.mark.slow
def test_unlike_prompts_look_like_levels():
    """Each prompt accepts alike at all levels, but deep levels are reached on the easy ones: one vector misplans."""
    assert rise([1, 7] * 20)[0] > 0
    low, high = rise([3] * 40)
    assert low < 0 < high


def test_steps_without_room_for_the_whole_probe_are_left_out():
    with pytest.raises(InvalidRequest, match="allow more new tokens"):
        measure_trials(drafting, requests([3], tokens=2), WIDTH, LEVELS)
    with pytest.raises(InvalidRequest, match="at least 1 child per node"):
        probe_shape(0, 2)


# planning from a stored measurement


def stored_trials(count=1000):
    accepted = count * np.array(STORED)[None]
    return AcceptanceTrials(np.repeat(accepted, 2, axis=0), np.full((2, len(STORED)), float(count)))


@pytest.mark.parametrize("size", [1, 4, 15, 31, 48])
def test_with_a_measured_vector_no_chain_and_no_k_ary_tree_is_better(size):
    best = best_shape(STORED, size, size)
    rivals = [k_ary_shape(k, size) for k in range(1, 5)]
    assert best.expected_tokens >= max(expected_tokens(each, STORED) for each in rivals) - 1e-12
    assert best.expected_tokens == pytest.approx(expected_tokens(best.shape, STORED), rel=1e-12)


def test_the_plan_is_better_than_its_rivals_and_says_what_it_rests_on():
    plan = make_plan(stored_trials(), COSTS, range(1, 32), range(1, 9))
    assert np.allclose(plan.rates, STORED)
    assert plan.chosen.expected_tokens == max(
        each.expected_tokens for each in (plan.chosen, *plan.rivals) if len(each.parents) == len(plan.chosen.parents)
    )
    assert plan.chosen.speedup > 1.02 * max(each.speedup for each in plan.rivals)
    assert plan.trials == (2000, 2000, 2000)
    assert f"gamma: {len(plan.chosen.parents)}, options: {{rates:" in report(plan)
    assert "level 3, 2000 trials: 0.780" in report(plan)


def test_a_pair_that_drafts_too_dearly_is_told_so():
    dear = PlanningCosts(90_000.0, (1, 33), (1000.0, 1500.0))
    plan = make_plan(stored_trials(), dear, range(1, 32), range(1, 9))
    assert plan.chosen.parents == ()
    assert report(plan).startswith("no tree is expected to pay")


def test_rates_are_written_as_the_option_reads_them():
    text = rates_text(((0.66666, 0.33334), (0.5,)))
    assert rates_of(text) == ((0.6666, 0.3333), (0.5,))


# rates by level


def all_trees(size):
    """Every ordered tree of so many nodes, once: level by level, so that parents never fall."""
    found = [()]
    for node in range(size):
        found = [(*each, parent) for each in found for parent in range(each[-1] if each else -1, node)]
    return found


@pytest.mark.parametrize("size", range(1, 8))
def test_the_programme_finds_the_best_of_all_trees_with_rates_by_level(size):
    random = np.random.default_rng(size)
    trees = [TreeShape(parents) for parents in all_trees(size)]
    for _ in range(3):
        vectors = (random.dirichlet(np.ones(size + 1), 3)[:, :size] * 0.95).tolist()
        for depth in (size, max(1, size // 2)):
            best = max(expected_tokens(each, vectors) for each in trees if each.depth <= depth)
            assert best_shape(vectors, size, depth).expected_tokens == pytest.approx(best, rel=1e-12)


def test_there_are_catalan_many_ordered_trees():
    assert [len(all_trees(size)) for size in range(7)] == [1, 1, 2, 5, 14, 42, 132]


def test_equal_levels_are_one_vector():
    assert best_shape([STORED[0]] * 4, 12, 6) == best_shape(STORED[0], 12, 6)


# times


def test_costs_are_fitted_from_times():
    shapes = [chain_shape(size) for size in (0, 1, 4, 8)] + [k_ary_shape(4, size) for size in (4, 20)]
    timed = [ShapeTiming(each, each.depth * 300.0 + len(each) * 25.0, 1000.0 + 10.0 * len(each), 9) for each in shapes]
    costs = planning_costs(timed)
    assert (costs.draft_forward_us, costs.draft_node_us) == (pytest.approx(300.0), pytest.approx(25.0))
    assert costs.tokens == (1, 2, 5, 9, 21)
    assert costs.target_us(5) == pytest.approx(1040.0)
    assert costs.step_us(k_ary_shape(4, 20)) == pytest.approx(2 * 300.0 + 20 * 25.0 + 1200.0)


def test_no_part_of_a_cost_is_negative():
    timed = [ShapeTiming(TreeShape(), 0.0, 100.0, 9)]
    timed += [ShapeTiming(chain_shape(size), 50.0 * size, 100.0, 9) for size in (1, 2, 4)]
    timed += [ShapeTiming(k_ary_shape(4, 16), 60.0, 100.0, 9)]
    costs = planning_costs(timed)
    assert costs.draft_forward_us > 0
    assert costs.draft_node_us == 0.0


@pytest.mark.parametrize(
    "timed", [[], [ShapeTiming(TreeShape(), 0.0, 1.0, 1)], [ShapeTiming(chain_shape(1), 1.0, 1.0, 1)]]
)
def test_costs_need_plain_steps_and_a_tree(timed):
    with pytest.raises(InvalidRequest, match="plain decoding and of at least one tree"):
        planning_costs(timed)


def test_every_shape_is_timed():
    grid = CostGrid(chains=(1, 2), sizes=(4,), width=2, repeats=1)
    timed = measure_times(drafting, requests([3] * 3, tokens=12), grid)
    assert [each.shape for each in timed] == list(grid.shapes)
    assert all(each.steps > 0 and each.verify_us > 0 for each in timed)
    assert planning_costs(timed).tokens == (1, 2, 3, 5)


# the command


@pytest.mark.slow
def test_a_plan_is_made_for_the_bundled_pair(tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "plan.json"
    prompts.write_text('{"prompt": "def name(self):"}\n\n{"messages": [{"role": "user", "content": "Hello."}]}\n')
    given = ["--target", "bundled:target", "--draft", "bundled:draft", "--prompts", str(prompts), "--out", str(out)]
    main([*given, "--tokens", "12", "--width", "2", "--levels", "2", "--most", "8"])
    written, said = json.loads(out.read_text()), capsys.readouterr().out
    assert len(written["chosen"]["parents"]) == written["options"]["size"]
    assert "fastest chain" in said
    assert len(rates_of(written["options"]["rates"])) == len(written["by_level"])


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "prompts.jsonl:1: not JSON"), ("{}", "needs the key messages or prompt"), ("", "no prompts")],
)
def test_prompts_that_are_none_are_named(tmp_path, capsys, line, message):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(line + "\n")
    with pytest.raises(SystemExit) as stopped:
        main(["--target", "bundled:target", "--draft", "bundled:draft", "--prompts", str(prompts)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
