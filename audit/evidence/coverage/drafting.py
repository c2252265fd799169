"""Situations of drafts: what was rejected, what was kept, and the step after."""

from collections.abc import Iterable

import numpy as np

from audit.evidence.coverage.view import Mask, RequestView, draft_depths, tree_depths
from audit.evidence.records import RequestRecord
from engine.core.types import Role
from engine.record.trace import steps_of

SMALL: float = 0.25
"""Residual mass below which the residual is renormalised from few probabilities."""
DEEP: int = 3
"""Nodes of a deep path."""


def nothing_drafted(view: RequestView) -> Mask:
    """Steps of a speculating arm without a draft."""
    return view.at_first(view.drafted == 0) if view.arm.speculates else view.nothing()


def rejected_first(view: RequestView) -> Mask:
    """Rejections of a draft's first token."""
    return view.at_last(view.steps_with(Role.RECOVERED) & (view.accepted == 0))


def rejected_last(view: RequestView) -> Mask:
    """Rejections of the last token of a draft of two or more."""
    last = (view.accepted > 0) & (view.accepted == draft_depths(view) - 1)
    return view.at_last(view.steps_with(Role.RECOVERED) & last)


def rejected_middle(view: RequestView) -> Mask:
    """Rejections between a draft's first and last token."""
    middle = (view.accepted > 0) & (view.accepted < draft_depths(view) - 1)
    return view.at_last(view.steps_with(Role.RECOVERED) & middle)


def kept_whole(view: RequestView) -> Mask:
    """Steps whose whole draft was emitted and followed by a bonus token."""
    return view.at_first(view.steps_with(Role.BONUS))


def after_nothing_drafted(view: RequestView) -> Mask:
    """Steps after a step without a draft."""
    return view.after(view.drafted == 0) if view.arm.speculates else view.nothing()


def after_rejection(view: RequestView) -> Mask:
    """Steps after a rejection."""
    return view.after(view.steps_with(Role.RECOVERED))


def after_kept_whole(view: RequestView) -> Mask:
    """Steps after a draft that was kept whole."""
    return view.after(view.steps_with(Role.BONUS))


def recovered_token(view: RequestView) -> Mask:
    """Tokens drawn after a rejection."""
    return view.role(Role.RECOVERED)


def bonus_token(view: RequestView) -> Mask:
    """Tokens drawn after a draft that was kept whole."""
    return view.role(Role.BONUS)


def plain_token(view: RequestView) -> Mask:
    """Tokens of steps without a draft."""
    return view.role(Role.PLAIN) if view.arm.speculates else view.nothing()


def small_residual(view: RequestView) -> Mask | None:
    """Rejections whose residual holds little mass."""
    mass = view.trace.residual_mass
    if len(mass) != len(view.emitted):
        return None
    return view.at_last(view.steps_with(Role.RECOVERED) & (np.nan_to_num(mass, nan=1.0) < SMALL))


def outside_truncation(view: RequestView) -> Mask | None:
    """Rejections of a drafted token that the target's truncation excludes."""
    trace, sampling = view.trace, view.sampling
    if len(trace.examined_p) != len(trace.examined_node):
        return None
    steps = np.zeros(len(view.emitted), np.bool_)
    if sampling.top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0:
        excluded = np.repeat(np.arange(len(view.emitted)), trace.n_examined)[trace.examined_p == 0.0]
        steps[excluded] = True
    return view.at_last(steps & view.steps_with(Role.RECOVERED))


def tree_branch(view: RequestView) -> Mask:
    """Steps of a tree whose accepted path leaves the first child of some node."""
    steps = np.zeros(len(view.emitted), np.bool_)
    for step in steps_of(view.trace) if view.arm.tree else ():
        parents = view.trace.node_parent[step.nodes].tolist()
        examined = view.trace.examined_node[step.examined]
        kept = examined[view.trace.examined_accepted[step.examined] == 1].tolist()
        steps[step.index] = any(node != parents.index(parents[node]) for node in kept)
    return view.at_first(steps)


def tree_deep(view: RequestView) -> Mask:
    """Steps of a tree whose accepted path has three or more nodes."""
    return view.at_first(view.accepted >= DEEP) if view.arm.tree else view.nothing()


def drafts_deep(requests: Iterable[RequestRecord]) -> bool:
    """True if some tree has a node at the depth of `tree_deep`."""
    return any(int(tree_depths(request.trace).max(initial=0)) >= DEEP for request in requests)
