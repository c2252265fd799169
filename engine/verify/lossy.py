"""Verification rules that do not keep the target's law: each declares `lossless` as false.

They accept more than p allows, for speed or for measuring. Their settings are in `engine.verify.SETTINGS`, and a
rule's facts hold the settings in effect. With neutral settings each rule emits p and still declares itself lossy: the
declaration belongs to the rule, not to its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.core.errors import InvalidRequest
from engine.core.trees import ROOT, children, depths, is_chain, path
from engine.core.types import DraftRule, Emitted, Examined, Floats, Proposal, Protocol, QKind, Role, StepOutcome
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf
from engine.verify.chain import residual
from engine.verify.interface import VerifierFacts, last_role, q_of


class TypicalVerifier:
    """Typical acceptance (Medusa, Cai et al. 2401.10774): keep the longest path of sufficiently likely tokens.

    A drafted token x passes if p(x) > min(epsilon, delta exp(-H(p))), H in nats, where p is the target's after the
    token's prefix. The rule keeps the longest path on which every token passes; ties go to the largest product of p,
    then to the path whose last node comes first. The token after the path is drawn from the whole p, which still
    contains the tokens that did not pass.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        options = {"epsilon": epsilon, "delta": delta}
        self.facts = _lossy(Protocol.TYPICAL, DraftRule.GREEDY, options, trees=True)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test every node whose ancestors pass, then choose. Needs no q and no acceptance numbers."""
        tree = proposal.tree
        weights = self._passing(proposal, rows)
        depth = dict(enumerate(depths(tree))) | {ROOT: 0}
        end = max(weights, key=lambda node: (depth[node], weights[node], -node))
        kept = path(tree, end)
        examined = tuple(
            Examined(node, _p_of(proposal, rows, node), q_of(proposal, node), float("nan"), node in kept)
            for node in range(len(tree))
            if tree.parents[node] in weights
        )
        emitted = [_accepted(proposal, rows, node) for node in kept]
        last = _last(proposal, rows, end, rows[end + 1].p, randomness)
        return StepOutcome((*emitted, last), examined)

    def _passing(self, proposal: Proposal, rows: TargetRows) -> dict[int, float]:
        """Log of the product of p down to each node that passes with all its ancestors; the root's is 0."""
        weights = {ROOT: 0.0}
        for node, parent in enumerate(proposal.tree.parents):
            if parent in weights:
                p = _p_of(proposal, rows, node)
                if p > self._threshold(rows[parent + 1].p):
                    weights[node] = weights[parent] + math.log(p)
        return weights

    def _threshold(self, p: Floats) -> float:
        some = p[p > 0]
        entropy = -float(np.sum(some * np.log(some)))
        return min(self._epsilon, self._delta * math.exp(-entropy))


@dataclass(frozen=True, slots=True)
class _ThresholdTests:
    """The children of one node after their tests: the one kept, or ROOT, and [V] p without the refused tokens."""

    kept: int
    left: Floats
    examined: tuple[Examined, ...]


class ThresholdVerifier:
    """Acceptance by thresholds (SGLang's `speculative_accept_threshold_single` and `_acc`), for chains and trees.

    At a node one number u serves all children. The first child x is kept for which
    u threshold_acc < p(c_1) + ... + p(x), the sum over the children tried so far, or p(x) >= threshold_single. If none
    is, a token is drawn from p without the refused ones, renormalised. q takes no part. With both thresholds 1 this is
    the law of the tree rule for fixed candidates, and p comes out for any draft.
    """

    def __init__(self, threshold_single: float, threshold_acc: float) -> None:
        self._single, self._acc = threshold_single, threshold_acc
        options = {"threshold_single": threshold_single, "threshold_acc": threshold_acc}
        self.facts = _lossy(Protocol.THRESHOLD, DraftRule.GREEDY, options, trees=True)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Walk down from the root while a child is kept."""
        emitted: list[Emitted] = []
        examined: list[Examined] = []
        node = ROOT
        while True:
            tried = self._try_children(proposal, node, rows[node + 1].p, rows.position + len(emitted), randomness)
            examined.extend(tried.examined)
            if tried.kept == ROOT:
                emitted.append(_last(proposal, rows, node, tried.left, randomness))
                mass = float(tried.left.sum()) if tried.examined else float("nan")
                return StepOutcome(tuple(emitted), tuple(examined), mass)
            node = tried.kept
            emitted.append(_accepted(proposal, rows, node))

    def _try_children(
        self, proposal: Proposal, node: int, p: Floats, position: int, randomness: Randomness
    ) -> _ThresholdTests:
        offered = children(proposal.tree, node)
        u = randomness.uniform(position, Purpose.ACCEPT) if offered else float("nan")
        left, total = p.copy(), 0.0
        examined: list[Examined] = []
        for child in offered:
            token = proposal.tree.tokens[child]
            # from the remaining mass: a token that was offered before counts once
            chance = float(left[token])
            total += chance
            # strict, so that u = 0 does not accept a token of probability zero
            accepted = u * self._acc < total or chance >= self._single
            examined.append(Examined(child, chance, q_of(proposal, child), u, accepted))
            if accepted:
                return _ThresholdTests(child, left, tuple(examined))
            left[token] = 0.0
        return _ThresholdTests(ROOT, left, tuple(examined))


class EnsembleVerifier:
    """Verification against v = weight p + (1 - weight) q (`assistant_ensemble_weight` of transformers, DIVERSE).

    The chain rule with v in the place of p: accept x if u q(x) < v(x), else emit from norm(max(v - q, 0)), which is
    norm(max(p - q, 0)) as v - q = weight (p - q). After the last acceptance there is no q, and the bonus is from p.
    Every token that was decided on a draft has the law v, at TV (1 - weight) TV(p, q) from p.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        options = {"weight": weight}
        self.facts = _lossy(Protocol.ENSEMBLE, DraftRule.INDEPENDENT, options, trees=False)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test the drafted tokens one after the other.

        Raises:
            InvalidRequest: the proposal branches, or its q is unknown.
        """
        _require_chain(proposal, "ensemble")
        if len(proposal.tree) and proposal.q_kind is QKind.NONE:
            raise InvalidRequest("the ensemble rule needs q, and this proposer gives none; use typical or threshold")

        def accepts(node: int, u: float) -> bool:
            p, q = _p_of(proposal, rows, node), q_of(proposal, node)
            return u * q < self._weight * p + (1.0 - self._weight) * q

        return _walk(proposal, rows, randomness, accepts, lambda node: residual(rows[node].p, proposal, node))


class SyntheticVerifier:
    """Acceptance at given rates (vLLM's synthetic rejection sampling), to measure speed at an acceptance length.

    `length` is the mean acceptance length, the last token of a step included. The drafted token at place i, counted
    from 0, is accepted with probability length - 1 - i, held within 0 and 1: the schedule of least variance, whose
    first floor(length - 1) places always accept, the next with the fraction, and the others never. p and q take no
    part. The token after the path is drawn from the whole p. A draft shorter than the schedule ends it.
    """

    def __init__(self, length: float) -> None:
        self._length = length
        options = {"length": length}
        self.facts = _lossy(Protocol.SYNTHETIC, DraftRule.INDEPENDENT, options, trees=False)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test the drafted tokens one after the other. Raises InvalidRequest: the proposal branches."""
        _require_chain(proposal, "synthetic")
        return _walk(proposal, rows, randomness, lambda node, u: u < self._length - 1.0 - node, lambda _: None)


def _walk(
    proposal: Proposal,
    rows: TargetRows,
    randomness: Randomness,
    accepts: Callable[[int, float], bool],
    left_of: Callable[[int], Floats | None],
) -> StepOutcome:
    """Test a chain's tokens at a number each; at the first refusal draw from `left_of` it, or from p if it has none."""
    examined: list[Examined] = []
    for node in range(len(proposal.tree)):
        u = randomness.uniform(rows.position + node, Purpose.ACCEPT)
        accepted = accepts(node, u)
        examined.append(Examined(node, _p_of(proposal, rows, node), q_of(proposal, node), u, accepted))
        if not accepted:
            break
    kept = [item.node for item in examined if item.accepted]
    end = len(kept) - 1
    left = left_of(len(kept)) if len(kept) < len(examined) else None
    last = _last(proposal, rows, end, rows[end + 1].p if left is None else left, randomness)
    mass = float("nan") if left is None else float(left.sum())
    return StepOutcome((*(_accepted(proposal, rows, node) for node in kept), last), tuple(examined), mass)


def _lossy(protocol: Protocol, draft_rule: DraftRule, options: Mapping[str, float], *, trees: bool) -> VerifierFacts:
    return VerifierFacts(protocol, lossless=False, draft_rule=draft_rule, trees=trees, options=options)


def _require_chain(proposal: Proposal, rule: str) -> None:
    if not is_chain(proposal.tree):
        raise InvalidRequest(f"the {rule} rule cannot verify a branching tree; use typical or threshold")


def _p_of(proposal: Proposal, rows: TargetRows, node: int) -> float:
    """The target's probability of a drafted token after its prefix."""
    return float(rows[proposal.tree.parents[node] + 1].p[proposal.tree.tokens[node]])


def _accepted(proposal: Proposal, rows: TargetRows, node: int) -> Emitted:
    row = proposal.tree.parents[node] + 1
    return Emitted(proposal.tree.tokens[node], Role.ACCEPTED, row, _p_of(proposal, rows, node))


def _last(proposal: Proposal, rows: TargetRows, end: int, left: Floats, randomness: Randomness) -> Emitted:
    """A token after the path to the node `end`, from `left` [V], or from p where rounding left it without mass."""
    row, offered = end + 1, bool(children(proposal.tree, end))
    p = rows[row].p
    purpose = Purpose.RESIDUAL if offered else Purpose.BONUS
    u = randomness.uniform(rows.position + len(path(proposal.tree, end)), purpose)
    token = inverse_cdf(left if left.sum() > 0 else p, u)
    return Emitted(token, last_role(proposal, offered), row, float(p[token]), u)
