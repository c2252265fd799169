"""One step of vLLM's sampler, written down as a frame.

Rows are those that decided an emitted token: of a request with a drafts kept,
the rows of its first a drafted tokens and the one behind them. They are the raw
logits as the model gave them, before temperature, masks and penalties, and as
float32 (16-bit rows lose nothing by that); where a grammar is on, vLLM has put
its mask on them already. Besides them the engine's own numbers: log-probability
of each drafted and each emitted token by the processed rows, their entropy and
variance, and q where the engine has one. Runs in vLLM's worker; knows nothing
about files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.backends.vllm.frames import Frame

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Who is in a step, in the order of its rows: B requests, D drafted tokens, D + B rows of raw logits."""

    names: tuple[str, ...]
    discarded: tuple[bool, ...]
    """[B] the prompt is not read to its end yet; what is sampled is thrown away."""
    counts: tuple[int, ...]
    """[B] drafted tokens."""
    drafted: tuple[int, ...]
    """[D]"""
    sampled: NDArray[Any]
    """[B, most + 1] with a negative number behind the end of each row."""


@dataclass(frozen=True, slots=True)
class Law:
    """What the engine decided by: processed logits. Each is None where the step has none.

    logits: [D, V] of drafted places.
    q: [D, V] what drafts were drawn from.
    last: [B, V] of the place behind the draft, one for every request, also for those that did not come so far.
    """

    logits: torch.Tensor | None = None
    q: torch.Tensor | None = None
    last: torch.Tensor | None = None


class Misplaced(Exception):
    """The rows do not lie where this version's metadata say."""


def frame_of(step: int, batch: Batch, raw: torch.Tensor | None, law: Law) -> Frame:
    """The step as a message; `raw` [D + B, V] None where rows are not wanted."""
    vocabulary = next((each.shape[1] for each in (raw, law.logits, law.last) if each is not None), None)
    emitted = [_valid(row, vocabulary) for row in batch.sampled]
    kept = [i for i, gone in enumerate(batch.discarded) if not gone]
    first = np.concatenate([[0], np.cumsum(batch.counts, dtype=np.int64)])
    requests = [
        {
            "id": batch.names[i],
            "drafted": list(batch.drafted[first[i] : first[i + 1]]),
            "emitted": emitted[i],
        }
        for i in kept
    ]
    arrays: dict[str, NDArray[Any]] = {}
    if raw is not None:
        at = np.concatenate([np.empty(0, np.int64), *(first[i] + i + np.arange(len(emitted[i])) for i in kept)])
        arrays["rows"] = _host(raw[torch.as_tensor(at, device=raw.device)])
    if law.logits is not None:
        nodes = np.concatenate([np.empty(0, np.int64), *(np.arange(first[i], first[i + 1]) for i in kept)])
        said = np.concatenate([np.empty(0, np.int64), *(_decided(emitted[i], batch.counts[i]) for i in kept)])
        arrays |= _drafted_numbers(
            law.logits[_index(nodes, law.logits)], np.array(batch.drafted, np.int64)[nodes], said
        )
        if law.q is not None:
            arrays["q"] = _host(law.q[_index(nodes, law.q)])
    if law.last is not None:
        reached = [emitted[i][-1] if len(emitted[i]) > batch.counts[i] else -1 for i in kept]
        arrays |= _last_numbers(law.last[_index(np.array(kept, np.int64), law.last)], np.array(reached, np.int64))
    return Frame({"step": step, "batch": len(batch.names), "requests": requests}, arrays)


def _valid(row: NDArray[Any], vocabulary: int | None) -> list[int]:
    return [int(token) for token in row if token >= 0 and (vocabulary is None or token < vocabulary)]


def _decided(emitted: list[int], count: int) -> Ints:
    """[count] what came out at each drafted place; -1 where nothing did."""
    padded = [*emitted[:count], *([-1] * max(0, count - len(emitted)))]
    return np.array(padded, np.int64)


def _index(at: Ints, values: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(at, device=values.device)


@dataclass(frozen=True, slots=True)
class _Moments:
    """Log-probabilities [N, V] of rows, and of each row the entropy [N] and the variance of its surprise [N]."""

    logp: torch.Tensor
    entropy: torch.Tensor
    variance: torch.Tensor


def _moments(logits: torch.Tensor) -> _Moments:
    logp = torch.log_softmax(logits.float(), -1)
    p = logp.exp()
    # rows have -inf where p is 0, and 0 times -inf is not a number
    entropy = -torch.where(p > 0, p * logp, 0.0).sum(-1)
    square = torch.where(p > 0, p * logp.square(), 0.0).sum(-1)
    return _Moments(logp, entropy, square - entropy.square())


def _drafted_numbers(logits: torch.Tensor, drafted: Ints, said: Ints) -> dict[str, NDArray[Any]]:
    """By drafted token: the engine's own log p of it and of what came out there, the row's argmax and moments."""
    row = _moments(logits)
    return {
        "log_p_drafted": _at(row.logp, drafted),
        "log_p_emitted": _at(row.logp, said),
        "best": _host(row.logp.argmax(-1)),
        "entropy": _host(row.entropy),
        "variance": _host(row.variance),
    }


def _last_numbers(logits: torch.Tensor, said: Ints) -> dict[str, NDArray[Any]]:
    """By request: the same of the token behind the draft, where one came out."""
    row = _moments(logits)
    return {
        "last_log_p": _at(row.logp, said),
        "last_entropy": _host(row.entropy),
        "last_variance": _host(row.variance),
    }


def _at(logp: torch.Tensor, tokens: Ints) -> NDArray[Any]:
    """[D'] NaN where there is no token."""
    index = torch.as_tensor(tokens, device=logp.device)
    values = logp.gather(1, index.clamp_min(0)[:, None])[:, 0]
    return _host(torch.where(index >= 0, values, torch.nan))


def _host(values: torch.Tensor) -> NDArray[Any]:
    wide = values.float() if values.is_floating_point() else values
    found: NDArray[Any] = wide.detach().cpu().numpy()
    return found
