"""An injected draft fault: the argmax, handed over with a soft q.

A faithful copy of a mistake that candidate generators make (tokens by argmax,
`candidate_logits` as if they had been drawn): the rule `r <= p / q` then keeps
too many likely tokens. It serves suites that must fail; the arm's configuration names it as the fault.
"""

from __future__ import annotations

from typing import Any


def argmax_draft(generator: Any) -> Any:
    """The assistant decodes greedily; the scores that it hands over stay the ones that it would sample from."""
    generator.generation_config.do_sample = False
    return generator
