"""Every drafted token after the first is reported with the q row of the token before it.

A q for the wrong place: the tests of the ratio and the residual are both off.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.core.types import Proposal
from engine.faults.broken_proposer import proposer_fault
from engine.faults.chain_walk import Origin


def shifted(proposal: Proposal) -> Proposal:
    """Row 0 stays; row i becomes row i - 1."""
    if proposal.q is None or len(proposal.q) == 0:
        return proposal
    return replace(proposal, q=np.concatenate([proposal.q[:1], proposal.q[:-1]]))


FAULT = proposer_fault("draft_rows_shifted", Origin("none known: the draft's half of a shifted row"), offer=shifted)
