"""Two-sample tests for engines that return only text.

They test whether two arms answer the same prompts alike, by four statistics: the squared maximum mean discrepancy (MMD)
with the Hamming kernel, the share of places with the same token, and with a k-spectrum kernel, the normalised product
of counts of short runs (Gretton et al. 2012; Gao, Liang and Guestrin 2025, whose estimate is used: within prompts,
without the diagonal); the chi-square of bigrams by arm within each prompt; and the total variation between the laws of
the first token. Each is a sum over prompts, and its p-value is (1 + b) / (1 + B) over permutations that move whole
responses between the arms of one prompt: valid for responses that are independent given the prompt, whatever the number
per prompt and arm. Weak compared with every test that knows p, and blind to faults that leave these statistics
unchanged; a large p-value is no evidence of equality. Cost: O(n^2 L) per prompt with n responses of L tokens for a
kernel, then O(n^2) per permutation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from engine.core.types import Floats

Ints = NDArray[np.int64]
Part = Callable[[Floats], Floats]
"""One prompt's share of a statistic: labels [B, n], 1 for the second arm, to [B]."""

PAD = -1
PERMUTATIONS = 999
LONGEST_RUN = 5
LOOK_AGAIN, CLOSER = 0.02, 19_999


@dataclass(frozen=True, slots=True)
class TwoSampleData:
    """Responses of both arms: `tokens` [N, L] padded with `PAD`, `prompt` [N], `second` [N] by arm."""

    tokens: Ints
    prompt: Ints
    second: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TwoSampleTest:
    """`p` is at least 1 / (1 + permutations). Only prompts answered by both arms count."""

    statistic: float
    p: float
    permutations: int
    responses: int
    prompts: int


def padded(sequences: Sequence[Sequence[int]]) -> Ints:
    """[N, L] with `PAD` behind the end of each of N sequences; ids are 0 or more."""
    longest = max((len(other) for other in sequences), default=0)
    tokens = np.full((len(sequences), longest), PAD, dtype=np.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    return tokens


def pooled(
    first: Sequence[Sequence[int]],
    first_prompt: Sequence[int],
    second: Sequence[Sequence[int]],
    second_prompt: Sequence[int],
) -> TwoSampleData:
    """Both arms' responses and the prompt that each answers; prompts of a single arm are left out."""
    if len(first) != len(first_prompt) or len(second) != len(second_prompt):
        raise ValueError("each response needs the number of its prompt")
    prompt = np.array([*first_prompt, *second_prompt], dtype=np.int64)
    arm = np.arange(len(prompt)) >= len(first)
    kept = np.isin(prompt, np.intersect1d(prompt[arm], prompt[~arm]))
    return TwoSampleData(padded([*first, *second])[kept], prompt[kept], arm[kept])


def hamming_test(
    sample: TwoSampleData, generator: np.random.Generator, permutations: int = PERMUTATIONS
) -> TwoSampleTest:
    """MMD with the share of the L places at which two responses hold the same token; ends agree with ends."""
    return _permuted(sample, _mmd_parts(sample, hamming_kernel), generator, permutations)


def spectrum_test(
    sample: TwoSampleData, generator: np.random.Generator, permutations: int = PERMUTATIONS, longest: int = LONGEST_RUN
) -> TwoSampleTest:
    """MMD with the normalised product of counts of runs of 1 to `longest` tokens."""
    return _permuted(sample, _mmd_parts(sample, lambda rows: spectrum_kernel(rows, longest)), generator, permutations)


def bigram_test(
    sample: TwoSampleData, generator: np.random.Generator, permutations: int = PERMUTATIONS
) -> TwoSampleTest:
    """Chi-square of arm by bigram, summed over prompts."""
    return _permuted(sample, _parts(sample, _bigram_part), generator, permutations)


def first_token_test(
    sample: TwoSampleData, generator: np.random.Generator, permutations: int = PERMUTATIONS
) -> TwoSampleTest:
    """Mean over prompts of the L1 distance of the first token's laws; an empty response is a token of its own."""
    share = 1.0 / max(1, len(np.unique(sample.prompt)))
    return _permuted(sample, _parts(sample, lambda tokens: _first_part(tokens, share)), generator, permutations)


def hamming_kernel(tokens: Ints) -> Floats:
    """[n, n] share of equal places of rows [n, L]."""
    same = np.zeros((len(tokens), len(tokens)), dtype=np.int32)
    for column in tokens.T:
        same += column[:, None] == column
    return np.asarray(same / max(1, tokens.shape[1]), dtype=np.float64)


def spectrum_kernel(tokens: Ints, longest: int) -> Floats:
    """[n, n] cosine between counts of runs of rows [n, L]; 0 for rows without any."""
    gram = sum(_products(tokens, length, weighted=False) for length in range(1, longest + 1))
    own = np.sqrt(np.diagonal(np.asarray(gram, dtype=np.float64)))
    own = np.where(own > 0, own, 1.0)
    return np.asarray(gram / own[:, None] / own)


def _products(tokens: Ints, length: int, *, weighted: bool) -> Floats:
    """[n, n] products of rows' counts of runs; `weighted` divides each run's by its total."""
    n, columns = tokens.shape
    if columns < length:
        return np.zeros((n, n))
    runs = sliding_window_view(tokens, length, axis=1).reshape(-1, length)
    rows = np.repeat(np.arange(n), columns - length + 1)
    whole = np.all(runs != PAD, axis=1)
    if not whole.any():
        return np.zeros((n, n))
    _, run = np.unique(runs[whole], axis=0, return_inverse=True)
    counts = scipy.sparse.coo_array(
        (np.ones(len(run)), (rows[whole], run.ravel())), shape=(n, int(run.max()) + 1)
    ).tocsr()
    scaled = counts / counts.sum(axis=0) if weighted else counts
    return np.asarray((scaled @ counts.T).toarray())


def _groups(sample: TwoSampleData) -> list[Ints]:
    return [np.flatnonzero(sample.prompt == prompt) for prompt in np.unique(sample.prompt)]


def _parts(sample: TwoSampleData, build: Callable[[Ints], Part]) -> list[Part]:
    return [build(sample.tokens[rows]) for rows in _groups(sample)]


def _mmd_parts(sample: TwoSampleData, kernel: Callable[[Ints], Floats]) -> list[Part]:
    """The unbiased estimate over pairs within prompts: all pairs weigh the same, as in Gao et al."""
    sizes = [(int(np.sum(~sample.second[rows])), int(np.sum(sample.second[rows]))) for rows in _groups(sample)]
    # without pairs within an arm its term is omitted; relabelling does not change the rest
    within_first = max(1, sum(first * (first - 1) for first, _ in sizes))
    within_second = max(1, sum(second * (second - 1) for _, second in sizes))
    between = max(1, sum(first * second for first, second in sizes))

    def build(tokens: Ints) -> Part:
        matrix = kernel(tokens)
        np.fill_diagonal(matrix, 0.0)

        def part(second: Floats) -> Floats:
            first = 1.0 - second
            to_first, to_second = first @ matrix, second @ matrix
            own, other = np.sum(to_first * first, axis=1), np.sum(to_second * second, axis=1)
            across = np.sum(to_first * second, axis=1)
            return np.asarray(own / within_first - 2.0 * across / between + other / within_second)

        return part

    return _parts(sample, build)


def _bigram_part(tokens: Ints) -> Part:
    products = _products(tokens, 2, weighted=True)
    lengths = np.maximum(0, np.sum(tokens != PAD, axis=1) - 1).astype(np.float64)
    total = float(lengths.sum())

    def part(second: Floats) -> Floats:
        own = second @ lengths
        # for two rows chi-square is quadratic in one of them
        excess = np.sum((second @ products) * second, axis=1) - own**2 / max(total, 1.0)
        both = own * (total - own)
        return np.asarray(np.divide(total**2 * excess, both, out=np.zeros(len(own)), where=both > 0))

    return part


def _first_part(tokens: Ints, share: float) -> Part:
    starts = tokens[:, 0] if tokens.shape[1] else np.full(len(tokens), PAD, dtype=np.int64)
    kinds = (starts[:, None] == np.unique(starts)).astype(np.float64)

    def part(second: Floats) -> Floats:
        size = second.sum(axis=1, keepdims=True)
        counts = second @ kinds
        distance = np.abs(counts / size - (kinds.sum(axis=0) - counts) / (second.shape[1] - size))
        return np.asarray(share * distance.sum(axis=1))

    return part


def _permuted(
    sample: TwoSampleData, parts: Sequence[Part], generator: np.random.Generator, permutations: int
) -> TwoSampleTest:
    groups = _groups(sample)
    observed, values = 0.0, np.zeros(permutations)
    for rows, part in zip(groups, parts, strict=True):
        labels = sample.second[rows].astype(np.float64)
        observed += float(part(labels[None])[0])
        values += part(generator.permuted(np.tile(labels, (permutations, 1)), axis=1))
    # relabellings with the same value differ only by rounding
    above = int(np.sum(values >= observed - 1e-9 * max(1.0, abs(observed))))
    p = (1 + above) / (1 + permutations)
    return TwoSampleTest(observed, p, permutations, len(sample.prompt), len(groups))


def matched_p(agreement: Sequence[Floats], generator: np.random.Generator) -> float:
    """P-value that answers agree with their own partners no further than with the others of their prompt.

    A first look of `PERMUTATIONS` that is above `LOOK_AGAIN` stands. Any other gives way to a second of `CLOSER`, with
    numbers of its own, so that p-values down to 1 / (1 + `CLOSER`) cost little on arms without a relation.

    Args:
        agreement: for each prompt [n, n], of answer i with the other arm's answer j; partners are on the diagonal.
        generator: draws the permutations of partners, within a prompt.
    """
    first = _matched(agreement, generator, PERMUTATIONS)
    return first if first > LOOK_AGAIN else _matched(agreement, generator, CLOSER)


def _matched(agreement: Sequence[Floats], generator: np.random.Generator, permutations: int) -> float:
    observed = sum(float(np.trace(block)) for block in agreement)
    drawn = np.zeros(permutations)
    for block in agreement:
        orders = generator.permuted(np.tile(np.arange(len(block)), (permutations, 1)), axis=1)
        drawn += block[np.arange(len(block)), orders].sum(axis=1)
    return float((1 + np.count_nonzero(drawn >= observed)) / (1 + permutations))


def matched_floor(agreement: Sequence[Floats]) -> float:
    """Share of the permutations of partners that keep every partner: no p-value of these blocks lies below it."""
    return math.exp(-sum(math.lgamma(len(block) + 1) for block in agreement))
