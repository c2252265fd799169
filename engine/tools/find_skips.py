"""``python -m engine.tools.find_skips``: which sublayers of a target its own drafts can do without.

The search behind the proposer `layer_skip` (Draft & Verify, Zhang et al. 2309.08168, which searches by Bayesian
optimisation on tokens per second). This search measures the acceptance and counts the cost: the share of positions at
which the skipped model's argmax is the target's, and the share of sublayers that run, the head among them. Both enter
the cost model of `engine.record.cost`, and the set with the largest expected speed-up wins.

The search is greedy and then local, in a fixed order, without random numbers: equal inputs give equal sets.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.core.errors import EngineError, InvalidRequest
from engine.models.interface import Placement, TargetModel, WantedOutputs, chain_placement
from engine.models.loading import load_model
from engine.proposers.self_draft import SkipSet
from engine.record.cost import expected_tokens, speedup

MOST_GAMMA = 8


@dataclass(frozen=True, slots=True)
class SkipTrial:
    """One skip set as measured: of `positions` argmaxes, `agreed` are the target's.

    `gamma` in 1..8 is the draft length with the largest expected speed-up, `speed`.
    """

    skips: SkipSet
    agreed: int
    positions: int
    gamma: int
    speed: float

    @property
    def promise(self) -> float:
        """The expected bound on larger sets' speed-up with free drafts, because agreement hardly ever rises."""
        return expected_tokens(self.agreed / self.positions, MOST_GAMMA)


class SkipSetBench:
    """Measures skip sets of one target on given token sequences; every set at most once.

    Args:
        model: a target that can run in part.
        sequences: texts of the kind to be generated, as token ids.
        budget: most sets that are measured.

    Raises:
        InvalidRequest: the target cannot run in part, or there is no sequence that its context holds twice.
    """

    def __init__(self, model: TargetModel, sequences: Sequence[Sequence[int]], budget: int) -> None:
        if not model.divisible:
            raise InvalidRequest("the target runs whole only; a skip set needs loader: lean")
        lengths = [len(sequence) for sequence in sequences]
        if min(lengths, default=0) < 1 or 2 * max(lengths) > model.context:
            raise InvalidRequest(
                f"a skip set is measured on sequences of 1 to {model.context // 2} tokens: half of the context"
            )
        self.layers = model.divisible
        self.left = budget
        self._model = model
        self._known: dict[SkipSet, SkipTrial] = {}
        self._cache = model.new_cache(len(lengths), 2 * max(lengths))
        whole = chain_placement(sequences, [0] * len(lengths), self._cache.trash)
        self._again = _side_by_side(whole, self._cache.trash)
        self._kept = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        self._argmax = self._read(whole, WantedOutputs())

    def measure(self, skips: SkipSet) -> SkipTrial:
        """The set's agreement and expected speed-up, from memory if it was measured before."""
        if skips not in self._known:
            self.left -= 1
            same = self._read(self._again, WantedOutputs(part=skips.part(self.layers))) == self._argmax
            self._known[skips] = self._trial(skips, int(same.sum()), len(same))
        return self._known[skips]

    def measured(self, sets: Iterable[SkipSet]) -> Iterator[SkipTrial]:
        """The sets' trials, until the budget is used up."""
        for skips in sets:
            if self.left <= 0:
                return
            yield self.measure(skips)

    def _read(self, placement: Placement, want: WantedOutputs) -> Tensor:
        """[all positions] argmaxes, padding left out."""
        logits = self._model.forward(self._cache, placement, want).logits
        assert logits is not None
        return logits.argmax(-1).cpu()[self._kept]

    def _trial(self, skips: SkipSet, agreed: int, positions: int) -> SkipTrial:
        rho = share_run(skips, self.layers)
        speeds = {gamma: speedup(agreed / positions, gamma, rho) for gamma in range(1, MOST_GAMMA + 1)}
        gamma = max(speeds, key=lambda item: speeds[item])
        return SkipTrial(skips, agreed, positions, gamma, speeds[gamma])


def share_run(skips: SkipSet, layers: int) -> float:
    """The remaining share of a forward's cost; the head, which always runs, counts as one sublayer."""
    return (2 * layers - len(skips) + 1) / (2 * layers + 1)


def _side_by_side(whole: Placement, trash: int) -> Placement:
    """Every token again in a scratch column, which sees the columns before its position and its own, as drafts do."""
    lengths, width = whole.lengths, whole.tokens.shape[1]
    slots = np.full(whole.tokens.shape, trash, np.int64)
    visible = np.zeros((*whole.tokens.shape, 2 * width), np.bool_)
    visible[:, :, 0] = True
    for row, count in enumerate(lengths):
        places = np.arange(count)
        slots[row, :count] = count + places
        visible[row, :count, :count] = places[None, :] < places[:, None]
        visible[row, places, count + places] = True
    return replace(whole, slots=torch.from_numpy(slots), span=2 * width, branches=torch.from_numpy(visible))


@torch.inference_mode()
def search(bench: SkipSetBench, least: int = 0) -> SkipTrial:
    """The best set found: grown from nothing, then improved by small changes until none helps or the budget is spent.

    It skips at least `least` sublayers; at 0, skipping nothing is a candidate too, with a speed-up of 1.

    Raises:
        InvalidRequest: the budget ends before a set of `least` sublayers is reached.
    """
    best = _grown(bench, least)
    improved = True
    while improved:
        improved = False
        near = (neighbour for neighbour in neighbours(best.skips, bench.layers) if len(neighbour) >= least)
        for trial in bench.measured(near):
            if trial.speed > best.speed:
                best, improved = trial, True
                break
    return best


def _grown(bench: SkipSetBench, least: int) -> SkipTrial:
    """Skip, one after the other, the sublayer that costs the least agreement; the fastest set on the way."""
    here = bench.measure(SkipSet())
    best = None if least else here
    while best is None or here.promise > best.speed:
        larger = (neighbour for neighbour in neighbours(here.skips, bench.layers) if len(neighbour) > len(here.skips))
        trials = list(bench.measured(larger))
        if not trials:
            break
        here = max(trials, key=lambda trial: trial.agreed)
        if len(here.skips) >= least and (best is None or here.speed > best.speed):
            best = here
    if best is None:
        raise InvalidRequest(f"no set of {least} sublayers was reached; raise the budget or lower the least number")
    return best


def neighbours(skips: SkipSet, layers: int) -> Iterator[SkipSet]:
    """The sets with one sublayer more, one less, or one exchanged, in this order."""
    everything = [(kind, index) for kind in ("attention", "ffn") for index in range(layers)]
    inside = [item for item in everything if item[1] in getattr(skips, item[0])]
    outside = [item for item in everything if item not in inside]
    yield from (_set([*inside, new]) for new in outside)
    yield from (_set([item for item in inside if item != old]) for old in inside)
    for old in inside:
        yield from (_set([new, *(item for item in inside if item != old)]) for new in outside)


def _set(sublayers: Sequence[tuple[str, int]]) -> SkipSet:
    return SkipSet(
        tuple(sorted(index for kind, index in sublayers if kind == "attention")),
        tuple(sorted(index for kind, index in sublayers if kind == "ffn")),
    )


def windows(tokens: Sequence[int], count: int, length: int) -> list[list[int]]:
    """`count` runs of `length` tokens, spread evenly over a text.

    Raises:
        InvalidRequest: the text is too short for them.
    """
    if min(count, length) < 1:
        raise InvalidRequest(f"{count} sequences of {length} tokens: both must be at least 1")
    if len(tokens) < count * length:
        raise InvalidRequest(f"the text has {len(tokens)} tokens; {count} sequences of {length} need {count * length}")
    stride = len(tokens) // count
    return [list(tokens[start : start + length]) for start in range(0, count * stride, stride)]


def report(trial: SkipTrial, layers: int) -> str:
    """The found set as the proposer's options, with its expected speed-up."""
    options = ", ".join(f'{key}: "{value}"' for key, value in trial.skips.options().items())
    skipped = f"{len(trial.skips)} of {2 * layers} sublayers skipped"
    measured = (
        f"{trial.agreed} of {trial.positions} argmaxes agree; {skipped}; "
        f"expected speed-up {trial.speed:.2f} at gamma {trial.gamma}"
    )
    return f"options: {{{options}}}\n{measured}" if len(trial.skips) else f"no set is expected to pay\n{measured}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search and print."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.tools.find_skips", description="find a skip set for layer_skip"
    )
    parser.add_argument("--target", required=True, help="a folder, a .gguf file, bundled:NAME or hf:ORG/NAME")
    parser.add_argument("--data", type=Path, required=True, help="UTF-8 text of the kind to be generated")
    parser.add_argument("--dtype", default="float32", help="float32, float64 or bfloat16")
    parser.add_argument("--sequences", type=int, default=8, help="number of token runs to compare")
    parser.add_argument("--length", type=int, default=64, help="tokens of each run")
    parser.add_argument("--budget", type=int, default=400, help="largest number of sets to measure")
    parser.add_argument("--least", type=int, default=0, help="fewest sublayers to skip")
    given = parser.parse_args(arguments)
    try:
        loaded = load_model(given.target, dtype=given.dtype)
        if loaded.tokenizer is None:
            raise InvalidRequest(f"{given.target}: no tokenizer; add tokenizer.json to its folder")
        tokens = loaded.tokenizer(given.data.read_text(encoding="utf-8"), verbose=False)["input_ids"]
        bench = SkipSetBench(loaded.model, windows(tokens, given.sequences, given.length), given.budget)
        matched = search(bench, given.least)
    except (EngineError, OSError) as error:
        parser.error(str(error))
    print(report(matched, bench.layers))


if __name__ == "__main__":
    main()
