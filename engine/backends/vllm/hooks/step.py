"""One step of vLLM's sampler as a frame.

Rows are those that decided an emitted token: for a request with a accepted drafts, the rows of its first a drafted
tokens and the row after them. They are the raw logits as the model gave them, before temperature, masks and penalties,
and as float32 (16-bit rows lose nothing by that); in a step with a grammar the frame holds the masks too. A frame also
holds the engine's own numbers: log-probability of each drafted and each emitted token by the processed rows, and q
where the engine has one; without raw rows, the processed rows' entropy and variance too. The code runs in
vLLM's worker.

What a grammar does to the rows of one step, read from the rows themselves.

vLLM applies its grammars' bits to the rows in place, just before its sampler runs. The hook holds the rows as they were
and compares: a token is forbidden where its logit became minus infinity. The mask on record is thus the one that was
applied to that row, not the one that the scheduler sent. The code runs in vLLM's worker.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from engine.backends.vllm.spool import LAST
from engine.core.child import Frame
from engine.record.mask_bits import packed


def allowed_tokens(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """[N, V] True where a row still allows a token; rows of requests without a grammar allow all."""
    return ~(torch.isneginf(after) & ~torch.isneginf(before))


def q_behind(runner: Any, metadata: Any) -> Mapping[int, torch.Tensor]:
    """By a request's place in the batch: [V] the row from which the drafter drew the token behind the scheduled ones.

    vLLM drops that token, and those after it, if the grammar forbids it; the verifier never gets its row. Requests
    whose whole draft was scheduled, or whose drafter has no rows, are absent.
    """
    rows, names = getattr(runner, "_draft_probs", None), getattr(runner, "_draft_prob_req_ids", None)
    if rows is None or names is None:
        return {}
    at = {name: index for index, name in enumerate(names)}
    batch = runner.input_batch.req_ids[: runner.input_batch.num_reqs]
    counts = metadata.num_draft_tokens if metadata is not None else [0] * len(batch)
    return {
        index: rows[at[name], count].clone()
        for index, (name, count) in enumerate(zip(batch, counts, strict=True))
        if name in at and count < rows.shape[1]
    }


def offered_behind(runner: Any, metadata: Any, offered: MutableMapping[str, list[int]]) -> dict[int, list[int]]:
    """By a request's place in the batch: its last draft behind the scheduled tokens; takes the drafts out."""
    batch = runner.input_batch.req_ids[: runner.input_batch.num_reqs]
    counts = metadata.num_draft_tokens if metadata is not None else [0] * len(batch)
    drafts = (offered.pop(name, [])[count:] for name, count in zip(batch, counts, strict=True))
    return {index: rest for index, rest in enumerate(drafts) if rest and rest[0] >= 0}


Ints = NDArray[np.int64]
FAR: Final = -1e18


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The requests of a step, in the order of its rows: B requests, D drafted tokens, D + B rows of raw logits."""

    names: tuple[str, ...]
    discarded: tuple[bool, ...]
    """[B] the prompt is not fully read yet, so the sampled token is discarded."""
    counts: tuple[int, ...]
    """[B] drafted tokens."""
    drafted: tuple[int, ...]
    """[D]"""
    sampled: NDArray[Any]
    """[B, most + 1] with a negative number behind the end of each row."""
    settings: tuple[Mapping[str, Any], ...] = ()
    """[B] what the batch holds for each request; empty if the runner is not read."""


@dataclass(frozen=True, slots=True)
class DecisionRows:
    """The inputs of the engine's decisions: processed logits, as copies that a frame consumes. Each is None if the
    step has none.

    logits: [D, V] of drafted places.
    q: [D, V] the distributions of the drafts.
    last: [B, V] of the place behind the draft, one for every request, including requests with a refused draft.
    best: [D] the argmax of drafted places, instead of `logits` if the step samples no request.
    masks: [D + B, V] the tokens that grammars allow on every row.
    behind: by request, [V] the row of the token that the drafter drew behind the scheduled draft.
    offered: by request, the drafted tokens behind the scheduled ones.
    """

    logits: torch.Tensor | None = None
    q: torch.Tensor | None = None
    last: torch.Tensor | None = None
    best: Ints | None = None
    masks: torch.Tensor | None = None
    behind: Mapping[int, torch.Tensor] = field(default_factory=dict)
    offered: Mapping[int, Sequence[int]] = field(default_factory=dict)


class RowsMisplaced(Exception):
    """The rows are not at the places that this version's metadata state."""


def frame_of(step: int, batch: StepBatch, raw: torch.Tensor | None, law: DecisionRows) -> Frame:
    """The step as a message; `raw` [D + B, V] None without raw rows."""
    vocabulary = next((item.shape[1] for item in (raw, law.logits, law.last) if item is not None), None)
    emitted = [_valid(row, vocabulary) for row in batch.sampled.tolist()]
    kept = [i for i, gone in enumerate(batch.discarded) if not gone]
    first = tuple(accumulate(batch.counts, initial=0))
    requests = [
        {
            "id": batch.names[i],
            "drafted": batch.drafted[first[i] : first[i + 1]],
            "emitted": emitted[i],
            **({"behind": True} if i in law.behind else {}),
            **({"offered": list(law.offered[i])} if law.offered.get(i) else {}),
            **({"settings": batch.settings[i]} if batch.settings else {}),
        }
        for i in kept
    ]
    nodes = [node for i in kept for node in range(first[i], first[i + 1])]
    arrays: dict[str, NDArray[Any]] = {}
    deciding = [first[i] + i + place for i in kept for place in range(len(emitted[i]))]
    if raw is not None:
        arrays["rows"] = _host(raw[torch.tensor(deciding, dtype=torch.long, device=raw.device)])
    if law.masks is not None:
        arrays["masks"] = packed(law.masks[torch.tensor(deciding, device=law.masks.device).long()].cpu().numpy())
    behind = [law.behind[i] for i in kept if i in law.behind]
    if behind:
        arrays["behind"] = _host(torch.stack(behind))
    if law.best is not None:
        arrays["best"] = law.best[nodes]
    if law.logits is not None:
        said = [token for i in kept for token in _decided(emitted[i], batch.counts[i])]
        drafted = [batch.drafted[node] for node in nodes]
        # a reader of the raw rows can compute the moments
        arrays |= _drafted_numbers(_rows(law.logits, nodes).float(), [drafted, said], raw is None)
        if law.q is not None:
            arrays["q"] = _host(_rows(law.q, nodes))
    if law.last is not None:
        reached = [emitted[i][-1] if len(emitted[i]) > batch.counts[i] else -1 for i in kept]
        arrays |= _last_numbers(_rows(law.last, kept).float(), reached, raw is None)
    return Frame({"step": step, "batch": len(batch.names), "requests": requests}, arrays)


def _valid(row: Sequence[int], vocabulary: int | None) -> list[int]:
    return [token for token in row if token >= 0 and (vocabulary is None or token < vocabulary)]


def _decided(emitted: Sequence[int], count: int) -> list[int]:
    """[count] the token emitted at each drafted place; -1 where there is none."""
    return [*emitted[:count], *([-1] * max(0, count - len(emitted)))]


def _rows(values: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
    """Rows by increasing index: all of them are the tensor itself."""
    return values if len(at) == len(values) else values[torch.tensor(at, dtype=torch.long, device=values.device)]


def best_of(logits: torch.Tensor) -> Ints:
    """[N] each row's argmax, the first one where there are several; numpy's is many times as fast as torch's."""
    wide = logits.float()
    ints: Ints = np.argmax(wide.numpy(), -1) if wide.is_cpu else _host(wide.argmax(-1))
    return ints


def _drafted_numbers(logits: torch.Tensor, tokens: Sequence[Sequence[int]], moments: bool) -> dict[str, NDArray[Any]]:
    """For each drafted token: the engine's log p of it and of the emitted one (`tokens` [2][N]); the row's argmax."""
    norm = torch.logsumexp(logits, -1)
    drafted, emitted = _at(logits, norm, tokens)
    result = {"log_p_drafted": drafted, "log_p_emitted": emitted, "best": best_of(logits)}
    return result | (_moments(logits, norm) if moments else {})


def _last_numbers(logits: torch.Tensor, said: Sequence[int], moments: bool) -> dict[str, NDArray[Any]]:
    """For each request: log p of the token after the draft, if one was emitted."""
    norm = torch.logsumexp(logits, -1)
    result = {"log_p": _at(logits, norm, [said])[0], **(_moments(logits, norm) if moments else {})}
    return {LAST + name: item for name, item in result.items()}


def _moments(logits: torch.Tensor, norm: torch.Tensor) -> dict[str, NDArray[Any]]:
    """[N] entropy of each row, and variance of its surprise; in place, for new memory costs more than arithmetic."""
    logp = logits.sub_(norm[:, None])
    p = logp.exp()
    # rows have -inf where p is 0, and 0 times -inf is not a number; the square of this is one in float32
    logp.clamp_(min=FAR)
    weighted = p.mul_(logp)
    entropy = -weighted.sum(-1)
    square = weighted.mul_(logp).sum(-1)
    return {"entropy": _host(entropy), "variance": _host(square - entropy.square())}


def _at(logits: torch.Tensor, norm: torch.Tensor, tokens: Sequence[Sequence[int]]) -> NDArray[Any]:
    """[K, N] log p of K tokens of each row; NaN where one is negative."""
    index = torch.tensor(tokens, dtype=torch.long, device=logits.device)
    values = logits.gather(1, index.clamp_min(0).T).sub_(norm[:, None]).T
    return _host(values.masked_fill_(index < 0, torch.nan))


def _host(values: torch.Tensor) -> NDArray[Any]:
    wide = values.float() if values.is_floating_point() else values
    result: NDArray[Any] = wide.detach().cpu().numpy()
    return result
