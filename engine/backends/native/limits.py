"""Refusals of the built-in engine before anything runs: parts that do not fit, too many nodes, unknown tokens.

All functions raise InvalidRequest.
"""

from engine.core.errors import InvalidRequest
from engine.core.types import Request
from engine.models.probe.choose import ModelWithNumerics
from engine.proposers.interface import ProposerFacts
from engine.verify.interface import VerifierFacts


def require_fit(rule: VerifierFacts, drafts: ProposerFacts) -> None:
    """Refuse a rule that cannot verify the proposer's drafts, before anything runs."""
    if drafts.shape == "tree" and not rule.trees:
        raise InvalidRequest(
            f"the {rule.protocol} rule cannot verify the trees of proposer {drafts.name}; "
            "use the tree, gumbel or greedy rule"
        )


def require_room(target: ModelWithNumerics, drafts: ProposerFacts, gamma: int) -> None:
    """Refuse trees that exceed the columns of the target's arithmetic, before anything runs."""
    most, nodes = target.numerics.most_tree_nodes, gamma + drafts.lookahead_tokens
    if most is not None and nodes > most and (drafts.shape == "tree" or drafts.lookahead_tokens):
        raise InvalidRequest(
            f"proposer {drafts.name}: {nodes} tokens read beside each other in one step, {target.numerics.mode} "
            f"numerics have room for {most}; lower gamma or use numerics: exact"
        )


def require_tokens(request: Request, vocabulary: int) -> None:
    """Refuse a request that names a token which the target does not have."""
    sampling = request.sampling
    named = {
        "prompt": list(request.prompt),
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "bad_words": [token for word in sampling.bad_words for token in word],
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    for name, tokens in named.items():
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise InvalidRequest(
                f"request {request.id}: {name} names token {wrong[0]}, but ids end at {vocabulary - 1}"
            )
