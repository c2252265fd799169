"""The reference pass: the target's rows over given tokens.

One forward over prompt and tokens, for one request at a time: no cache, no
draft, no tree, no batch. Models run in transformers' own code, loaded anew from
their files and computed in float64 where memory allows, so the pass is free of faults in the decoding loop, its cache
and the lean forward. Both share only the files, the tokenizer and `engine.sampling.transforms`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeAlias

import numpy as np
import torch

from engine.core.errors import CapacityError, ModelError
from engine.core.types import Generation, Request
from engine.models.loading import LoadedModel, load_model
from engine.models.scripted import Script
from engine.record.foreign.teacher_forced import GivenRow, record_given
from engine.record.trace import Rows, TraceHeader
from engine.sampling.stopping import Decode
from engine.sampling.transforms import MaskOf, transform

MOST_WIDE = 2**26
"""Parameters of the largest model that is computed in float64, which takes twice as long as float32."""


@dataclass(frozen=True, slots=True)
class ScriptedReference:
    """The script itself."""

    script: Script
    facts: Mapping[str, Any]

    def rows(self, tokens: Sequence[int], first: int) -> Rows:
        """[len(tokens) - first, V] float64."""
        return np.stack([self.script(tuple(tokens[:end])) for end in range(first, len(tokens))])


class TransformersReference:
    """A model of transformers with its own forward and the target's weights as rounded to the target's dtype."""

    def __init__(self, network: Any, facts: Mapping[str, Any]) -> None:
        # the grouped products of transformers know no float64
        network.set_experts_implementation("eager")
        wide = sum(parameter.numel() for parameter in network.parameters()) <= MOST_WIDE
        self._network = network.to(torch.float64 if wide else torch.float32).eval()
        self._context: int = network.config.get_text_config().max_position_embeddings
        # the head over a long prompt costs memory, not only time
        self._skips_prompts = "logits_to_keep" in signature(network.forward).parameters
        self.facts: Mapping[str, Any] = {
            "code": f"transformers {type(network).__name__}",
            "dtype": "float64" if wide else "float32",
            "weights_dtype": facts["dtype"],
            "model_sha256": facts["model_sha256"],
        }

    @torch.no_grad()
    def rows(self, tokens: Sequence[int], first: int) -> Rows:
        """[len(tokens) - first, V] float32. Raises CapacityError: more tokens than the model supports."""
        if len(tokens) > self._context:
            raise CapacityError(f"{len(tokens)} tokens exceed the target's context of {self._context}")
        count = len(tokens) - first
        fewer = {"logits_to_keep": count} if self._skips_prompts else {}
        answer = self._network(input_ids=torch.tensor([list(tokens[:-1])]), use_cache=False, **fewer)
        rows: Rows = answer.logits[0, -count:].float().numpy()
        return rows


Reference: TypeAlias = ScriptedReference | TransformersReference
"""A target that computes the rows of a whole text."""


def open_reference(target: LoadedModel) -> Reference:
    """The target's files once more, in transformers.

    Raises:
        ModelError: transformers cannot load them, or they are no longer what the target was loaded from.
    """
    facts = target.model.facts
    source, _, revision = (
        target.resolved.partition("@") if target.source.startswith("hf:") else (target.resolved, "", "")
    )
    loaded = load_model(source, dtype=facts["dtype"], loader="hf", revision=revision or None)
    if loaded.model.facts["model_sha256"] != facts["model_sha256"]:
        raise ModelError(f"{target.source}: the files changed after the target was loaded; start again")
    network: Any = getattr(loaded.model, "network")  # noqa: B009 - the protocol of models has no network
    return TransformersReference(network, facts)


def anchored(
    reference: Reference,
    request: Request,
    tokens: Sequence[int],
    header: TraceHeader,
    text: Decode,
    masks: MaskOf | None = None,
) -> Generation:
    """The reference's rows on `tokens` as the record of a plain generation with the given tokens. Roles are plain and
    random numbers NaN, because nothing was drawn. `masks` is the request's grammar.

    Raises:
        InvalidRequest: no tokens.
    """

    def rows_on(history: Sequence[int], start: int) -> Iterator[GivenRow]:
        rows = reference.rows(history, start)
        return (_given(row, history[: start + index + 1], header, masks) for index, row in enumerate(rows))

    return record_given(request, tokens, header, text, rows_on)


def _given(row: Rows, history: Sequence[int], header: TraceHeader, masks: MaskOf | None) -> GivenRow:
    """The row that decides the last token of `history`."""
    sampling, start = header.sampling, len(header.prompt)
    allowed = None if masks is None else masks(history[start:-1])
    decided = transform(row, history[:-1], start, sampling, header.eos_ids, allowed)
    return GivenRow(row, float(decided.p[history[-1]]), None if sampling.plain_scores else decided.scores, allowed)
