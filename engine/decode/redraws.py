"""Draws made again along a recorded draft: each token is drawn from the proposer's own row after the recorded tokens.

The proposer goes on from the recorded token, whatever it would have drawn, so that every node is drawn after the same
history as on record, and no difference hides the nodes or steps behind it. Lengths that a confidence decides
(`engine.proposers.confidence`) are decided again in the same way. Knows nothing of choices that a proposer makes
without its parts' draw rules: trees of the likeliest paths, guesses of the target, a cascade that rejects.

A node's lead is the largest total variation by which q would have to move for the recorded choice to be the
proposer's own. For a token drawn by a number it is the number's distance to the token's part of the cumulative law. Two
scores that are g apart, logits or log q with its noise, are equal after a change of g / 2 each, and a change of all
logits by at most g / 2 moves a softmax by at most tanh(g / 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import path_tokens
from engine.core.types import DraftRule, Floats, Proposal, QKind, Tree
from engine.proposers.confidence import largest_q, unsure
from engine.proposers.interface import Context, ProposerParts
from engine.sampling.draw import DraftContext, Draw, DrawRule, Siblings, SiblingSpec, draw, draw_siblings
from engine.sampling.rng import Randomness
from engine.sampling.transforms import truncate

Row = NDArray[np.floating[Any]]
Path = tuple[int, ...]
"""The drafted tokens down to a node."""


@dataclass(frozen=True, slots=True)
class OwnDraft:
    """The proposer's own choices, each after the recorded ones before it."""

    proposal: Proposal
    leads: tuple[tuple[int, float], ...]
    """Each node at which the proposer would have chosen otherwise, and the lead of its own choice; infinite where no
    change of q gives the recorded one. The node after a draft's last stands for its end.
    """


class Redraws:
    """The draw rules of a proposer that follows recorded drafts, one step of one request at a time.

    Args:
        own: the rule by which the proposer draws single tokens.
    """

    def __init__(self, own: DrawRule = draw) -> None:
        self._own = own
        self._start = 0
        self._randomness: Randomness | None = None
        self._children: dict[Path, list[int]] = {}
        self._tokens: dict[Path, list[tuple[int, float]]] = {}
        """The proposer's own tokens after each path, with their leads."""
        self._ends: dict[Path, float] = {}

    def parts(self, parts: ProposerParts) -> ProposerParts:
        """The parts of a proposer that draws so."""
        return replace(parts, draw=self.draw, draw_siblings=self.draw_siblings, unsure=self.unsure)

    def begin(self, recorded: Tree, context: Context) -> None:
        """The next step, and the draft that is on record for it."""
        self._start, self._randomness = len(context.history), context.randomness
        self._children, self._tokens, self._ends = {}, {}, {}
        for path in _paths(recorded):
            self._children.setdefault(path[:-1], []).append(path[-1])

    def _path(self, context: DraftContext) -> Path | None:
        """The place of a draw; None for one of an inner stage, which has numbers of its own."""
        return tuple(context.history[self._start :]) if context.randomness is self._randomness else None

    def draw(self, rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        """The recorded token with the proposer's own q, or its own token where the record has none."""
        drawn, path = self._own(rule, logits, context), self._path(context)
        if path is None or path not in self._children:
            return drawn
        recorded = self._children[path][0]
        # the last stage of a cascade decides, and it draws last
        self._tokens[path] = [(drawn.token, lead_over(recorded, drawn, logits, context))]
        return replace(drawn, token=recorded)

    def draw_siblings(
        self, rule: DraftRule, siblings: SiblingSpec, logits: Row, context: DraftContext, _recorded: Sequence[int] = ()
    ) -> list[Draw]:
        """As `draw`, for the children of a node."""
        path = self._path(context)
        known = [] if path is None else self._tokens.setdefault(path, [])
        # several drafters share the root
        recorded = [] if path is None else self._children.get(path, [])[len(known) : len(known) + siblings.count]
        draws = draw_siblings(rule, siblings, logits, context, recorded)
        for place, (token, drawn) in enumerate(zip(recorded, draws, strict=False)):
            again = drawn.q is None and token in recorded[:place]
            taken = (
                recorded[:place] if rule is DraftRule.COUPLED or siblings.how is Siblings.WITHOUT_REPLACEMENT else ()
            )
            lead = np.inf if again else lead_over(token, drawn, logits, context, taken)
            known.append((drawn.token, lead))
        return [
            replace(drawn, token=recorded[place]) if place < len(recorded) else drawn
            for place, drawn in enumerate(draws)
        ]

    def unsure(self, stop_below: float, logits: Row, context: DraftContext) -> bool:
        """True where the recorded draft ends, if a confidence may end drafts."""
        own, path = unsure(stop_below, logits, context), self._path(context)
        if not stop_below or path is None:
            return own
        ends = path not in self._children
        if own is not ends:
            self._ends[path] = abs(largest_q(logits, context) - stop_below)
        return ends

    def own(self, proposal: Proposal) -> OwnDraft:
        """The proposer's own draft behind a proposal of this step, which has the recorded tokens."""
        tokens, leads = list(proposal.tree.tokens), []
        places: dict[Path, int] = {}
        for node, path in enumerate(_paths(proposal.tree)):
            parent = path[:-1]
            place = places[parent] = places.get(parent, -1) + 1
            if parent in self._ends:
                # only chains end so
                leads.append((node, self._ends[parent]))
                return OwnDraft(with_tokens(proposal, tokens[:node]), tuple(leads))
            drawn = self._tokens.get(parent, [])
            if place < len(drawn) and drawn[place][0] != tokens[node]:
                tokens[node], lead = drawn[place]
                leads.append((node, lead))
        whole = proposal.tree.tokens
        if whole in self._ends:
            leads.append((len(whole), self._ends[whole]))
        return OwnDraft(replace(proposal, tree=replace(proposal.tree, tokens=tuple(tokens))), tuple(leads))


def lead_over(recorded: int, drawn: Draw, logits: Row, context: DraftContext, earlier: Sequence[int] = ()) -> float:
    """The lead of a drawn token over the recorded one, 0 if they are the same; q lacks `earlier` siblings."""
    if drawn.token == recorded:
        return 0.0
    if drawn.q is None:
        return _apart(context.row(logits).scores, drawn.token, recorded)
    noise = context.randomness.gumbel(len(context.history), len(drawn.q)) if np.isnan(drawn.uniform) else None
    laws = [(0.0, drawn.q), *_other_cuts(logits, context, earlier)]
    return min(max(distance, _lead_under(q, recorded, drawn.uniform, noise)) for distance, q in laws)


def _lead_under(q: Floats, recorded: int, uniform: float, noise: Floats | None) -> float:
    """By how much q must move before its choice, by a number or with noise, is the recorded token."""
    if q[recorded] == 0:
        return np.inf
    if noise is not None:
        with np.errstate(divide="ignore"):
            perturbed = np.log(q) + noise
        return _apart(perturbed, int(perturbed.argmax()), recorded)
    below = float(q[:recorded].sum())
    return max(below - uniform, uniform - below - float(q[recorded]), 0.0)


def _other_cuts(logits: Row, context: DraftContext, earlier: Sequence[int]) -> Iterator[tuple[float, Floats]]:
    """Q if a truncation cut at another token, and the total variation by which the whole law would have to move.

    With one token more, one less, or another last one; a truncation turns a small difference into a large one.
    """
    params = context.params
    if params.top_p == 1 and not params.min_p and not params.top_k:
        return
    row = context.row(logits)
    p = replace(context, params=replace(params, top_p=1.0, min_p=0.0, top_k=0)).row(logits).p
    ranked, kept = np.argsort(-p, kind="stable").tolist(), int(np.count_nonzero(row.p))
    before, edge = ranked[: kept - 1], ranked[kept - 1 : kept + 1]
    last, after = (float(p[token]) for token in (*edge, edge[-1])[:2])
    # top-p cuts a law that top-k and min-p have cut before
    share = float(truncate(p, replace(params, top_p=1.0)).max() / p.max())
    below, swap = share * float(p[before].sum()), (last - after) / 2
    for tokens, mass, of in ([*before, *edge], below + share * last, after), (before, below, last):
        rules = {
            abs(mass - params.top_p): params.top_p < 1,
            abs(of - params.min_p * float(p.max())): params.min_p > 0,
            swap: params.top_k > 0,
        }
        yield from _cut(min(distance for distance, used in rules.items() if used), p, tokens, earlier)
    yield from _cut(swap, p, [*before, *edge[1:]], earlier)


def _cut(distance: float, p: Floats, tokens: Sequence[int], earlier: Sequence[int]) -> Iterator[tuple[float, Floats]]:
    """The law of some tokens, without the earlier siblings; nothing if none has mass."""
    law = np.zeros(len(p))
    left = [token for token in tokens if token not in earlier]
    law[left] = p[left]
    if law.any():
        yield distance, law / law.sum()


def _apart(scores: Row, drawn: int, recorded: int) -> float:
    return float(np.tanh((scores[drawn] - scores[recorded]) / 4)) if np.isfinite(scores[recorded]) else np.inf


def _paths(tree: Tree) -> list[Path]:
    return [path_tokens(tree, node) for node in range(len(tree))]


def with_tokens(proposal: Proposal, tokens: Sequence[int]) -> Proposal:
    """A chain with these first tokens alone."""
    count = len(tokens)
    if not count:
        return replace(proposal, tree=Tree(), q_kind=QKind.NONE, q=None, uniforms=None)
    q, uniforms = (None if rows is None else rows[:count] for rows in (proposal.q, proposal.uniforms))
    return replace(proposal, tree=Tree.chain(tuple(tokens)), q=q, uniforms=uniforms)
