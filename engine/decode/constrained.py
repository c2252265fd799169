"""A second account of a finished answer's masks, apart from those that decided its tokens.

A fresh constraint reads the emitted tokens once, from first to last: nothing is drafted, so nothing is rolled back and
no state can be that of a rejected token or of another row. It shares the library and the compiled grammar with
decoding, hence their faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from engine.constraints.compiled import Grammars
from engine.core.types import SamplingParams
from engine.record.mask_bits import packed
from engine.record.rows.row_digests import digests
from engine.sampling.stopping import Decode

FACT: Final = "constraint"
"""Key of the account in a header's facts."""


def account_of_masks(
    grammars: Grammars, sampling: SamplingParams, tokens: Sequence[int], decode: Decode
) -> Mapping[str, Any]:
    """The facts of an answer under a grammar: the library, one digest per token, the first token that the library
    refuses, and the text before an end token.
    """
    spec, masks = sampling.structured, grammars.constraint(sampling)
    assert spec is not None
    assert masks is not None
    rows = np.stack([masks(tokens[:at]) for at in range(len(tokens))])
    ended = tokens[-1] in (*grammars.eos_ids, *sampling.stop_token_ids)
    refused = next((at for at, token in enumerate(tokens) if not rows[at, token]), None)
    return {
        FACT: {
            **grammars.facts(spec),
            "masks": [f"{int(value):016x}" for value in digests(packed(rows))],
            "refused": refused,
            "whole": ended,
            "text": decode(tokens[:-1] if ended else tokens),
        }
    }
