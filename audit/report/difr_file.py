"""An arm as a file that DiFR scores against a reference of the target: prompts and answers as token ids, no text.

The form is the one that DiFR's own description gives for answers from elsewhere: `config`, and `samples` with
`prompt_token_ids` and `outputs` of `token_ids` each (Karvonen et al., arXiv 2511.20621). Its scores mean something at
temperature 0, and above it only where an engine draws as vLLM does, from vLLM's seeds: the file cannot know that.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from audit.errors import UserError
from audit.evidence.records import RequestRecord
from audit.store.store import Store
from audit.text.staged_files import write_staged

SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Sampling parameters that the file states."""


def write_difr(store: Store, run: str, arm: str, out: Path) -> int:
    """Write the answered requests of an arm, without directed ones; returns their number.

    Raises:
        UserError: no such arm, no answers, requests with several sampling parameters, or an unwritable file.
        CannotDecide: a record is missing or was erased.
    """
    requests = store.load_arm(run, arm).keeping().requests
    if not requests:
        raise UserError(f"arm {arm} has no answered requests; export another arm")
    document = {"config": _config(run, arm, requests), "samples": list(samples_of(requests))}
    write_staged({out: (json.dumps(document) + "\n").encode()})
    return len(requests)


def _config(run: str, arm: str, requests: Sequence[RequestRecord]) -> dict[str, Any]:
    kinds = {tuple(getattr(request.trace.header.sampling, name) for name in SAMPLING) for request in requests}
    if len(kinds) > 1:
        raise UserError(f"arm {arm}: its requests have {len(kinds)} different sampling parameters, the file has one")
    return {"run": run, "arm": arm, **dict(zip(SAMPLING, kinds.pop(), strict=True))}


def samples_of(requests: Sequence[RequestRecord]) -> Iterator[dict[str, Any]]:
    """One entry per case: its prompt, and the answers of its repetitions. Requests come ordered by case."""
    for prompt, repetitions in groupby(requests, lambda request: (request.case_id, request.trace.header.prompt)):
        outputs = [{"token_ids": list(request.tokens)} for request in repetitions]
        yield {"prompt_token_ids": list(prompt[1]), "outputs": outputs}
