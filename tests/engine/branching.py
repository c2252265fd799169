"""Test proposers: trees that branch, and ones that break a rule of the loop."""

from collections.abc import Sequence

import numpy as np

from engine.core.trees import path_tokens
from engine.core.types import DraftRule, Proposal, QKind, Tree
from engine.proposers.interface import Context, ProposerFacts
from engine.sampling.draw import DraftContext, Draw, Siblings, SiblingSpec, draw_siblings

from .build import Setup, draft_script, target_script


class TreeProposer:
    """Two continuations of the root and two of each of those, in an order that interleaves the branches.

    One of the root's children and one of its children are what the target finds most
    likely, so that paths are accepted whose nodes do not lie side by side.
    """

    facts = ProposerFacts("test_tree", shape="tree", q_kind=QKind.ONE_HOT, can_couple=False, state="none")

    def __init__(self, setup: Setup):
        self._script = target_script(setup)
        self._vocabulary = setup.vocabulary
        self.started, self.finished, self.seen = [], [], []

    def start(self, context):
        self.started.append((context.row, context.request.id))

    def propose(self, contexts):
        return [self._tree(context) for context in contexts]

    def _tree(self, context: Context) -> Proposal:
        if context.budget < 6:
            return Proposal()
        history = tuple(context.history)
        unlikely, likely = self._pair(history)
        tokens, parents = [unlikely, likely], [-1, -1]
        for place in (0, 1):
            for node, first in enumerate((unlikely, likely)):
                tokens.append(self._pair((*history, first))[place])
                parents.append(node)
        return Proposal(Tree(tuple(tokens), tuple(parents)), QKind.ONE_HOT)

    def _pair(self, prefix):
        """A poor continuation and the target's best one; never equal."""
        order = np.argsort(self._script(prefix))
        return int(order[-2]), int(order[-1])

    def observe(self, context, verdict):
        self.seen.append((context.request.id, len(context.history), verdict))

    def finish(self, row):
        self.finished.append(row)


class FixedProposer:
    """Always the same proposal, cut by nobody."""

    facts = ProposerFacts("test_fixed", shape="chain", q_kind=QKind.ONE_HOT, can_couple=False, state="none")

    def __init__(self, make):
        self._make = make

    def start(self, context):
        pass

    def propose(self, contexts):
        return [self._make(context) for context in contexts]

    def observe(self, context, verdict):
        pass

    def finish(self, row):
        pass


class DrawnTree:
    """A tree drawn from the setup's first draft: `widths[d]` children under every node at depth d."""

    facts = ProposerFacts("test_drawn", shape="tree", q_kind=QKind.FULL, can_couple=False, state="none")

    def __init__(self, setup: Setup, how: Siblings, widths: Sequence[int], rule: DraftRule = DraftRule.INDEPENDENT):
        self._script, self._how, self._widths, self._rule = draft_script(setup), how, widths, rule

    def start(self, context):
        pass

    def propose(self, contexts):
        return [self._tree(context) for context in contexts]

    def _tree(self, context: Context) -> Proposal:
        tokens, parents, draws, level = [], [], [], [-1]
        for width in self._widths[: context.depth]:
            below = []
            for node in level:
                prefix = [*context.history, *path_tokens(Tree(tuple(tokens), tuple(parents)), node)]
                siblings = SiblingSpec(width, self._how, first=len(below))
                for drawn in self._siblings(siblings, prefix, context):
                    below.append(len(tokens))
                    tokens.append(drawn.token)
                    parents.append(node)
                    draws.append(drawn)
            level = below
        if len(tokens) > context.budget or not tokens:
            return Proposal()
        return proposal_of(Tree(tuple(tokens), tuple(parents)), draws)

    def _siblings(self, siblings, prefix, context):
        request = context.request
        drafting = DraftContext(prefix, len(request.prompt), request.sampling, (), context.randomness)
        return draw_siblings(self._rule, siblings, self._script(tuple(prefix)), drafting)

    def observe(self, context, verdict):
        pass

    def finish(self, row):
        pass


class TwoDrafters(DrawnTree):
    """One child from each of two drafts, each with its own q, under the root only."""

    def __init__(self, setup: Setup):
        super().__init__(setup, Siblings.WITH_REPLACEMENT, (2,))
        self._scripts = [draft_script(setup, number) for number in (0, 1)]

    def _siblings(self, siblings, prefix, context):
        request = context.request
        drafting = DraftContext(prefix, len(request.prompt), request.sampling, (), context.randomness)
        one = [SiblingSpec(1, Siblings.WITH_REPLACEMENT, first=order) for order in (0, 1)]
        return [
            drawn
            for script, siblings in zip(self._scripts, one, strict=True)
            for drawn in draw_siblings(self._rule, siblings, script(tuple(prefix)), drafting)
        ]


def proposal_of(tree: Tree, draws: Sequence[Draw]) -> Proposal:
    if draws[0].q is None:
        return Proposal(tree, QKind.ONE_HOT)
    return Proposal(tree, QKind.FULL, np.stack([each.q for each in draws]), np.array([each.uniform for each in draws]))
