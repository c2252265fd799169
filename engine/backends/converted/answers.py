"""What every answer of another process becomes: its end, the second decoding of its text, and errors as records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.backends.engine_process import Failure
from engine.backends.local_target import LocalTarget
from engine.backends.second_decoding import NO_DECODING, undecoded
from engine.core.types import FinishReason, Generation, Request
from engine.record.foreign import ForeignEngine, failed_trace, header_of


def failed(request: Request, failure: Failure, observed: ForeignEngine) -> Generation:
    """The generation of an unanswered request."""
    facts = {"error": {"kind": failure.kind, "message": failure.message}}
    header = header_of(request, observed, FinishReason.ERROR, facts)
    return Generation(request, (), FinishReason.ERROR, failed_trace(header), facts=facts)


def end_of(request: Request, tokens: Sequence[int], eos_ids: Sequence[int]) -> FinishReason:
    """The end of an answer, by its last token."""
    last = tokens[-1]
    if last in eos_ids and not request.sampling.ignore_eos:
        return FinishReason.EOS
    return FinishReason.STOP if last in request.sampling.stop_token_ids else FinishReason.LENGTH


def decoded_facts(request: Request, tokens: Sequence[int], reason: FinishReason, target: LocalTarget) -> dict[str, Any]:
    """The text of the tokens, decoded a second time, without the token that ended the answer."""
    kept = tokens[:-1] if reason is FinishReason.EOS else tokens
    decoding = target.decoded(request.prompt, kept)
    return undecoded(NO_DECODING) if decoding is None else decoding.facts()
