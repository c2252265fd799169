"""Test proposers: trees that branch, and ones that break a rule of the loop."""

import numpy as np

from engine.proposers.base import Context, ProposerFacts
from engine.types import Proposal, QKind, Tree

from .build import Setup, target_script


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
