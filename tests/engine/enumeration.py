"""The exact law of the real loop's output, by enumerating every random decision.

A uniform number becomes a branch: an acceptance test is taken with probability min(1, p / q), a draw with its weights.
Each leaf is one run of the loop; the leaves' probabilities add up to the exact law of the tokens. One loop serves all
leaves, so a proposer that carries something over would show.
"""

import functools
import itertools

import numpy as np

from engine.core.types import Request
from engine.decode.seams import LoopParts
from engine.sampling import draw as drafting
from engine.sampling import transforms as sampling

from .build import make_loop, target_script

TOLERANCE = 1e-12
PROMPT = (0, 1, 0)


class Branches:
    """Depth-first enumeration: `choose` replays a prefix of choices and extends it."""

    def __init__(self):
        self.pending = [[]]
        self.total = 0

    def __iter__(self):
        while self.pending:
            self.taken = self.pending.pop()
            self.at, self.probability = 0, 1.0
            self.total += 1
            yield self

    def choose(self, weights):
        shares = np.asarray(weights, dtype=np.float64)
        shares = shares / shares.sum()
        if self.at == len(self.taken):
            possible = [i for i, share in enumerate(shares) if share > 0]
            self.pending.extend([*self.taken, other] for other in possible[1:])
            self.taken = [*self.taken, possible[0]]
        choice = self.taken[self.at]
        self.at += 1
        self.probability *= shares[choice]
        return choice


class Coin(float):
    """A uniform number that branches when it is compared, and remembers within which bounds it lies."""

    def __new__(cls, branches):
        coin = super().__new__(cls, 0.5)
        coin.branches, coin.low, coin.high = branches, 0.0, 1.0
        return coin

    def __mul__(self, q):
        return _Scaled(self, q)

    def __lt__(self, limit):
        limit = min(max(limit, self.low), self.high)
        below = self.branches.choose([self.high - limit, limit - self.low]) == 1
        self.low, self.high = (self.low, limit) if below else (limit, self.high)
        return below


class _Scaled:
    def __init__(self, coin, q):
        self.coin, self.q = coin, q

    def __lt__(self, p):
        return self.coin < (1.0 if self.q <= p else p / self.q)


class CoinRandomness:
    def __init__(self, branches):
        self.branches = branches

    def uniform(self, position, purpose, index=0):
        return Coin(self.branches)

    def gumbel(self, position, vocabulary):
        return np.zeros(vocabulary)

    def of_step(self, position):
        return self


def enumerate_decisions(monkeypatch) -> Branches:
    """Send every random decision of the loop through one enumerator."""
    found = Branches()
    parts = LoopParts(numbers=lambda seed, stream: CoinRandomness(found))
    monkeypatch.setattr("engine.decode.loop.LoopParts", lambda: parts)
    # the law does not depend on the record; writing one per leaf would be half of the time
    monkeypatch.setattr("engine.decode.loop.Recorder", lambda header: None)
    for module in ("verify.chain", "verify.tree", "verify.block", "verify.lossy", "sampling.draw"):
        monkeypatch.setattr(f"engine.{module}.inverse_cdf", lambda weights, u: found.choose(weights))
    monkeypatch.setattr("engine.verify.gumbel.gumbel_argmax", lambda p, noise: found.choose(p))
    # under any coupling the draft is some token with q > 0: all of them are tried
    monkeypatch.setattr("engine.sampling.draw.gumbel_argmax", lambda q, noise: found.choose(q))
    remembered = remembering(sampling.transform)
    for module in ("engine.sampling.transforms", drafting.__name__):
        monkeypatch.setattr(f"{module}.transform", remembered)
    return found


def remembering(transform):
    """`transform` is a pure function: the leaves share the prefixes that they have in common."""

    @functools.cache
    def by_content(logits, history, n_prompt, params, eos_ids):
        return transform(np.frombuffer(logits), history, n_prompt, params, eos_ids)

    def remembered(logits, history, n_prompt, params, eos_ids, allowed=None):
        assert allowed is None, "no grammar is enumerated"
        return by_content(logits.tobytes(), tuple(history), n_prompt, params, eos_ids)

    return remembered


def emitted_law(setup, params, branches, loop=None):
    law = {}
    loop = loop or make_loop(setup, capacity=32)
    request = Request("r", PROMPT, params)
    for branch in branches:
        (generation,) = loop.run([request])
        law[generation.tokens] = law.get(generation.tokens, 0.0) + branch.probability
    return law


def target_law(setup, params):
    """The law of the first tokens by the definition, end tokens included."""
    law = {}
    script = target_script(setup)
    for tokens in itertools.product(range(setup.vocabulary), repeat=params.max_new_tokens):
        history, probability, told = list(PROMPT), 1.0, []
        for token in tokens:
            row = sampling.transform(script(tuple(history)), history, len(PROMPT), params, setup.eos_ids)
            probability *= row.p[token]
            history.append(token)
            told.append(token)
            if token in setup.eos_ids:
                break
        if probability > 0:
            law[tuple(told)] = probability
    return law


def distance(first, second):
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())
