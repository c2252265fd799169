"""From an answer of the engine to a request's record.

The engine names no refused draft, so every token is a step of its own without a draft; the rounds are facts of the
request. Rows are those that the engine showed before each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.backends.onnxruntime_genai.reconcile import SOURCES, Accounts, mismatches, speculation
from engine.backends.onnxruntime_genai.settings import MOST_DRAFTS, bounded
from engine.backends.process.record import (
    AnswerTerms,
    ReadAnswer,
    changed_options,
    decoded_facts,
    end_of,
    single_steps,
)
from engine.backends.process.settings import ProcessSettings
from engine.core.child import Frame
from engine.core.types import Request
from engine.record.foreign.requests import ForeignRecord


def read(request: Request, frame: Frame, asked: Mapping[str, Any], terms: AnswerTerms) -> ReadAnswer:
    """Read an answer to the message `asked`."""
    answer, ends = frame.header, terms.observed.eos_ids
    tokens = tuple(int(token) for token in answer["tokens"])
    reason = end_of(request, tokens, ends)
    most = most_drafts(terms.settings)
    accounts = Accounts(request.prompt, tokens, answer["sequence"], answer["growth"], most, ends)
    changed = [*changed_options(asked["search"], answer["search"])]
    changed += changed_options(asked["speculative"], answer["speculative"])
    facts: dict[str, Any] = {
        "reconciliation": {"sources": [*SOURCES, "options"], "mismatches": [*mismatches(accounts), *changed]},
        **decoded_facts(request, tokens, reason, terms.target),
    }
    if terms.settings.kind is not None:
        facts["speculation"] = speculation(accounts)
    record = ForeignRecord(single_steps(tokens, frame.arrays.get("rows")))
    return ReadAnswer(tokens, reason, terms.target.tokens.decode(tokens), facts, record)


def most_drafts(settings: ProcessSettings) -> int:
    """The largest number of drafted tokens of a round."""
    if settings.kind is None:
        return 0
    return settings.gamma if bounded(settings) else MOST_DRAFTS
