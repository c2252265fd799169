"""Recorded steps of proposers that draft from one hidden state of the target, with that state computed anew."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.record.trace import decode, steps_of
from engine.sampling.transforms import transform

from .tiny import tiny_target, whole_forward


@dataclass(frozen=True)
class Drafted:
    """One step: all tokens before it, the state of the newest but one, the draft, q rows of examined nodes."""

    request: Any
    history: list[int]
    state: Any
    tokens: list[int]
    parents: list[int]
    q: dict[int, np.ndarray]

    def row(self, logits, path=()):
        """What the request makes of draft logits after a drafted path."""
        history, request = [*self.history, *path], self.request
        return transform(logits.numpy(), history, len(request.prompt), request.sampling, ())


def drafted_steps(generation):
    """Every step with a draft."""
    trace, request = decode(generation.trace), generation.request
    tokens = [*request.prompt, *trace.tokens]
    states = whole_forward(tiny_target(), tokens)[1]
    for step in steps_of(trace):
        if step.nodes.stop > step.nodes.start:
            at = range(step.examined.start, step.examined.stop) if len(trace.q_rows) else ()
            yield Drafted(
                request=request,
                history=[int(token) for token in tokens[: step.position]],
                state=states[step.position - 2],
                tokens=trace.node_token[step.nodes].tolist(),
                parents=trace.node_parent[step.nodes].tolist(),
                q={int(trace.examined_node[x]): trace.q_rows[x] for x in at},
            )
