"""Staged speculation (Spector and Re 2308.04623): the draft model is itself decoded speculatively.

A tiny drafter, a second draft model or prompt lookup, drafts a few tokens; the draft model reads them in one forward
and decides, as a target would, how many of them and which token after them it proposes. Its proposal follows its own q
exactly and is verified like a draft made token by token. There are two exact rules:

* matching: the draft model draws its own token at every place, with the number or noise of that place, and continues
  while the tiny drafter predicted it. The proposal is that of `draft_model`, token by token, in fewer forwards;
* rejection: a drawn token is tested as by the chain rule, with separate numbers. It keeps more of the tiny drafter's
  tokens, but no single number determines a proposed token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import ModelNeeded
from engine.core.types import DraftRule, Emitted, Floats, Proposal, QKind, Role, StepOutcome
from engine.models.interface import TargetModel, to_numpy
from engine.proposers.copying.ngram import NgramProposer
from engine.proposers.draft_model.chain_draft import CachedDrafter, ChainDraft, DrawSettings, drafted_chains, limited
from engine.proposers.draft_model.draft_model import DraftModelProposer
from engine.proposers.interface import Context, Proposer, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import REJECTION, read
from engine.sampling.draw import Draw
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows
from engine.verify.chain import ChainVerifier

INNER: Final[Mapping[Purpose, Purpose]] = {
    Purpose.DRAFT: Purpose.INNER_DRAFT,
    Purpose.ACCEPT: Purpose.INNER_ACCEPT,
    Purpose.RESIDUAL: Purpose.INNER_RESIDUAL,
    Purpose.BONUS: Purpose.INNER_BONUS,
}


class InnerRandomness(Randomness):
    """The request's numbers for the inner stage; none of them is one of the outer stage's.

    Args:
        outer: the request's numbers.
    """

    def __init__(self, outer: Randomness) -> None:
        self._outer = outer

    def uniforms(self, position: int, purpose: Purpose, count: int, index: int = 0) -> Floats:
        """[count] numbers of the inner stage's purpose."""
        return self._outer.uniforms(position, INNER[purpose], count, index)

    def uniform(self, position: int, purpose: Purpose, index: int = 0) -> float:
        """One number of the inner stage's purpose."""
        return self._outer.uniform(position, INNER[purpose], index)


class CascadeProposer(CachedDrafter):
    """A draft model with a drafter of its own."""

    def __init__(self, parts: ProposerParts, model: TargetModel, tiny: Proposer, options: Mapping[str, Any]) -> None:
        super().__init__(model, parts.rows, parts.capacity)
        self._tiny = tiny
        self._how = DrawSettings.of(parts, stop_below=0.0)
        self._inner_gamma = options["inner_gamma"]
        self._rejects = options["inner_rule"] == REJECTION and parts.rule is DraftRule.INDEPENDENT
        self.facts = ProposerFacts(
            "cascade",
            options={**options, "tiny": tiny.facts.name},
            steady=SteadyDrafts(model.context),
            measured=not self._rejects,
            reads_target=False,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> CascadeProposer:
        """From the first draft model, the second one or prompt lookup, and two options."""
        options = read("cascade", parts.options)
        if parts.draft is None:
            raise ModelNeeded("proposer cascade needs a draft model")
        bare = replace(parts, draft=parts.others[0] if parts.others else None, others=(), options={})
        tiny = DraftModelProposer.build(bare) if parts.others else NgramProposer.build(bare)
        return cls(parts, parts.draft, tiny, options)

    def start(self, context: Context) -> None:
        """Both stages read the prompt but its last token."""
        self._tiny.start(context)
        super().start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of the rows' budgets; rows that no longer fit the draft model's context get shorter ones or none."""
        return drafted_chains([limited(context, self.room(context)) for context in contexts], self._advance)

    def _advance(self, drafts: Mapping[int, ChainDraft]) -> None:
        """The tiny drafter drafts, the draft model reads it all in one forward and adds to every row's draft."""
        result = self._tiny.propose([self._inner(other) for other in drafts.values()])
        offered = dict(zip(drafts, result, strict=True))
        for row, rows in self._read(drafts, offered).items():
            draft = drafts[row]
            before = len(draft.history)
            rejects = self._rejects and not draft.context.request.sampling.greedy
            verdict = (self._test if rejects else self._match)(draft, offered[row], rows)
            self._valid[row] = before + verdict.n_accepted
            self._tiny.observe(self._inner(draft), verdict)

    def _inner(self, draft: ChainDraft) -> Context:
        """The tiny drafter's view: a round adds one token to those that it keeps."""
        most = draft.context.budget - len(draft.draws) - 1
        randomness = InnerRandomness(draft.context.randomness) if self._rejects else draft.context.randomness
        budget = max(0, min(self._inner_gamma, most))
        return replace(draft.context, history=draft.history, budget=budget, depth=budget, randomness=randomness)

    def _read(
        self, drafts: Mapping[int, ChainDraft], offered: Mapping[int, Proposal]
    ) -> Mapping[int, NDArray[np.floating[Any]]]:
        """[1 + n, V] the draft model's logits after each row's newest token and the n offered ones."""
        texts = {row: [*draft.history, *offered[row].tree.tokens] for row, draft in drafts.items()}
        return {row: to_numpy(logits[-1 - len(offered[row].tree) :]) for row, logits in self.read_on(texts).items()}

    def _match(self, draft: ChainDraft, offered: Proposal, rows: NDArray[np.floating[Any]]) -> StepOutcome:
        """The draft model's own draws, up to and including the first that the tiny drafter did not predict."""
        before, tokens = len(draft.draws), offered.tree.tokens
        for place, logits in enumerate(rows):
            draft.extend(logits, self._how)
            if place == len(tokens) or draft.draws[-1].token != tokens[place]:
                break
        drawn = draft.draws[before:]
        roles = [*[Role.ACCEPTED] * (len(drawn) - 1), Role.BONUS if len(drawn) > len(tokens) else Role.RECOVERED]
        chances = [1.0 if item.q is None else float(item.q[item.token]) for item in drawn]
        return StepOutcome(
            tuple(Emitted(item.token, roles[i], i, chances[i], item.uniform) for i, item in enumerate(drawn))
        )

    def _test(self, draft: ChainDraft, offered: Proposal, rows: NDArray[np.floating[Any]]) -> StepOutcome:
        """Rejection sampling with the draft model in the target's place."""
        request, how = draft.context.request, self._how
        own = TargetRows(
            rows, offered.tree, draft.history, len(request.prompt), request.sampling, how.eos_ids, draft.context.masks
        )
        verdict = ChainVerifier().verify(offered, own, InnerRandomness(draft.context.randomness))
        draft.draws += [Draw(item.token, QKind.FULL, own[item.row].p, float("nan")) for item in verdict.emitted]
        return verdict

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """In both caches, what was accepted stays valid: all but the newest token, which came from the target."""
        self._valid[context.row] = min(self._valid[context.row], len(context.history) - 1)
        self._tiny.observe(context, verdict)

    def finish(self, row: int) -> None:
        """Forget the row."""
        super().finish(row)
        self._tiny.finish(row)
