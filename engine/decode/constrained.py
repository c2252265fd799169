"""A second account of a finished answer's masks, apart from those that decided its tokens.

A fresh constraint reads the emitted tokens once, from first to last: nothing is drafted, so nothing is rolled back and
no state can be that of a rejected token or of another row. It shares the library and the compiled grammar with
decoding, hence their faults.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.constraints.compiled import Grammars
from engine.core.types import SamplingParams
from engine.record.facts import CONSTRAINT
from engine.record.rows.row_digests import second_masks
from engine.sampling.stopping import Decode


def account_of_masks(
    grammars: Grammars, sampling: SamplingParams, tokens: Sequence[int], decode: Decode
) -> Mapping[str, Any]:
    """The facts of an answer under a grammar: the library, its masks, and the text before an end token."""
    spec, masks = sampling.structured, grammars.constraint(sampling)
    assert spec is not None
    assert masks is not None
    rows = np.stack([masks(tokens[:at]) for at in range(len(tokens))])
    again = second_masks(rows, tokens, (*grammars.eos_ids, *sampling.stop_token_ids))
    text = decode(tokens[:-1] if again["whole"] else tokens)
    return {CONSTRAINT: {**grammars.facts(spec), **again, "text": text}}
