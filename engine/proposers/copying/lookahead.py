"""Lookahead decoding (Fu et al. 2402.02057): n-grams that the target guesses during verification.

A window of guesses, `window` wide and `levels` - 1 deep, is read by the target in the same forward as the draft. The
argmax after its last level extends every diagonal to an n-gram of `levels` tokens, which goes to the request's pool,
and the window moves on by one level: Jacobi iteration on many offsets at once. Pool n-grams that begin with the last
committed token are the draft. It is a deterministic function of the prefix, so q is one-hot. No weights, no random
choices. Guesses are argmaxes at every temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from engine.core.trees import ROOT
from engine.core.types import Proposal, QKind, StepOutcome, Tree
from engine.models.interface import to_numpy
from engine.proposers.interface import Context, ProposerFacts, ProposerParts
from engine.proposers.options import read


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """The options: `window` offsets, n-grams of `levels` tokens, `guesses` of them for each first token."""

    window: int
    levels: int
    guesses: int

    @property
    def lookahead_tokens(self) -> int:
        """Tokens in the whole window."""
        return self.window * (self.levels - 1)


@dataclass(frozen=True, slots=True)
class LookaheadWindow:
    """The guesses: levels of equally many tokens, one for each offset."""

    levels: tuple[tuple[int, ...], ...]

    @classmethod
    def from_prompt(cls, prompt: Sequence[int], settings: LookaheadOptions) -> LookaheadWindow:
        """The end of the prompt, one token further at each offset and each level; a short prompt is repeated.

        Each diagonal is then a piece of the prompt, which is a better guess than unrelated tokens.
        """
        end = prompt[-(settings.window + settings.levels - 2) :]
        return cls(
            tuple(
                tuple(end[(level + offset) % len(end)] for offset in range(settings.window))
                for level in range(settings.levels - 1)
            )
        )

    def tree(self) -> Tree:
        """The first level as a chain, and under each of its nodes the later levels at the same offset."""
        width = len(self.levels[0])
        nodes = range(width * (len(self.levels) - 1))
        tokens = tuple(token for level in self.levels for token in level)
        return Tree(tokens, (*range(ROOT, width - 1), *nodes))

    def ngrams(self, result: Sequence[int]) -> list[tuple[int, ...]]:
        """The diagonals, each with the token `found` after it."""
        return list(zip(*self.levels, result, strict=True))

    def advanced(self, result: Sequence[int]) -> LookaheadWindow:
        """The window one level further: the root advanced by at least one token; guesses ignore further tokens."""
        return LookaheadWindow((*self.levels[1:], tuple(result)))


class NgramPool:
    """The n-grams of one request by their first token.

    Args:
        most: kept for each first token; the one collected longest ago makes room.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rests: dict[int, list[tuple[int, ...]]] = {}

    def add(self, ngram: tuple[int, ...]) -> None:
        """Store an n-gram as the latest one."""
        first, *others = ngram
        rest = tuple(others)
        rests = self._rests.setdefault(first, [])
        if rest in rests:
            rests.remove(rest)
        rests.append(rest)
        del rests[: -self._most]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """The continuations of `token` in the n-grams that begin with it, the latest first."""
        return self._rests.get(token, [])[::-1]


@dataclass(frozen=True, slots=True)
class _LookaheadRow:
    window: LookaheadWindow
    pool: NgramPool


class LookaheadProposer:
    """Drafts from n-grams that the target guessed in earlier steps."""

    def __init__(self, settings: LookaheadOptions) -> None:
        self._settings = settings
        self._rows: dict[int, _LookaheadRow] = {}
        self.facts = ProposerFacts(
            "lookahead",
            shape="tree",
            q_kind=QKind.ONE_HOT,
            can_couple=False,
            lookahead_tokens=settings.lookahead_tokens,
            options=asdict(settings),
            measured=False,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> LookaheadProposer:
        """From options `window`, `levels` and `guesses`."""
        return cls(LookaheadOptions(**read("lookahead", parts.options)))

    def start(self, context: Context) -> None:
        """A window of the prompt's last tokens and an empty pool."""
        window = LookaheadWindow.from_prompt(context.request.prompt, self._settings)
        self._rows[context.row] = _LookaheadRow(window, NgramPool(self._settings.guesses))

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """The pool's n-grams after the last committed token as a tree, and the window as lookahead tokens."""
        return [self._proposal(context) for context in contexts]

    def _proposal(self, context: Context) -> Proposal:
        row = self._rows[context.row]
        paths = row.pool.after(context.history[-1])
        tree = merged([path[: context.depth] for path in paths], context.budget)
        # without a budget this is the request's last step, so no later draft could use the lookahead tokens
        looked_ahead = context.budget > 0 and len(tree) + self._settings.lookahead_tokens <= context.room
        kind = QKind.ONE_HOT if len(tree) else QKind.NONE
        return Proposal(tree, kind, lookahead_tokens=row.window.tree() if looked_ahead else Tree())

    def observe(self, context: Context, verdict: StepOutcome) -> None:  # noqa: ARG002 - protocol
        """If the target read the window, collect its n-grams and advance it."""
        row, looked_ahead = self._rows[context.row], context.read.looked_ahead
        if looked_ahead is None or not len(looked_ahead):
            return
        result = to_numpy(looked_ahead[-self._settings.window :]).argmax(axis=1).tolist()
        for ngram in row.window.ngrams(result):
            row.pool.add(ngram)
        self._rows[context.row] = _LookaheadRow(row.window.advanced(result), row.pool)

    def finish(self, row: int) -> None:
        """Forget the row."""
        del self._rows[row]


def merged(paths: Iterable[Sequence[int]], budget: int) -> Tree:
    """The `paths` as one tree of at most `budget` nodes, common beginnings once; the first paths have precedence."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for path in paths:
        parent = ROOT
        for token in path:
            if (parent, token) not in nodes:
                if len(tokens) == budget:
                    return Tree(tuple(tokens), tuple(parents))
                nodes[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = nodes[parent, token]
    return Tree(tuple(tokens), tuple(parents))
