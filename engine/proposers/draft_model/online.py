"""A draft model that learns from the target while serving (Liu et al., Online Speculative Decoding, 2310.07177).

With `learn` off it is `draft_model`. With it, the target's rows at positions that were decided are collected, and after
`update_every` of them the draft takes one step towards the target. An update happens at the beginning of `propose`, for
all rows at once: the draft's cache is then rebuilt, so that q always belongs to one version, which every proposal
names.

Why this is lossless. q at a position must not depend on a random number that is still to be used there. A draft's
numbers are keyed by position, and a step also draws tokens behind the one that is refused, whose numbers the next step
uses again. So only rows that decided an emitted token are collected: their contexts are committed, and what is learnt
is a function of numbers at committed positions. The proposer never reads dropped tokens or the target's rows after
them.

The student keeps its own float32 weights, so the loaded model never changes, and returns a new model after each update.
Learning is not random: equal lessons in equal order give equal weights on the same machine and thread count. Source of
the reverse divergence: Agarwal et al. (2306.13649).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.core import versions
from engine.core.errors import InvalidRequest, ModelNeeded
from engine.core.types import Proposal, Role, StepOutcome
from engine.models.decoder.lean import LeanModel
from engine.models.interface import TargetModel
from engine.models.lean_weights import LayerWeights, LeanConfig, LeanWeights, rope_frequencies
from engine.models.numerics.fast import FastNumerics, rotated
from engine.models.numerics.interface import Affine, GrowingRope, RopeTables
from engine.proposers.draft_model.draft_model import DraftModelProposer
from engine.proposers.interface import Context, ProposerFacts, ProposerParts
from engine.proposers.options import read

FLOOR: Final = -40.0
"""Least log-probability of the target: a masked token would make the reverse divergence infinite."""
LONGEST_STEP: Final = 1.0
"""Gradients are scaled down to this norm."""


@dataclass(frozen=True, slots=True)
class DistillationSample:
    """The target's rows in one sequence.

    tokens: T token ids, the context of the last position.
    places: n ascending indices into `tokens`; place i is the last token of its row's context.
    rows: [n, V] logits of the target after those contexts.
    """

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    rows: NDArray[np.floating[Any]]


Divergence = Callable[[Tensor, Tensor], Tensor]
"""(log p, log q), both [n, V] -> [n] nats."""


DIVERGENCES: Final[Mapping[str, Divergence]] = {
    "forward": lambda p, q: (p.exp() * (p - q)).sum(-1),
    "reverse": lambda p, q: (q.exp() * (q - p)).sum(-1),
}
"""KL(p || q), where q must cover the target's support; KL(q || p), where it may keep to the most likely tokens."""


class LeanStudent:
    """A lean model's weights under Adam, one step per update."""

    def __init__(self, model: LeanModel, learning_rate: float, divergence: str) -> None:
        self._model = model
        self._weights = copied(model.weights)
        self._trained = {name: item.requires_grad_() for name, item in trained(self._weights).items()}
        self._divergence = DIVERGENCES[divergence]
        self._rope = GrowingRope(FastNumerics(), rope_frequencies(model.config), model.context, torch.float32)
        # one tensor after the other: the fused forms may add in another order
        self._optimiser = torch.optim.Adam(self._trained.values(), lr=learning_rate, foreach=False, fused=False)

    def digest(self) -> str:
        """Hex SHA-256 of the names and the bytes of all weights that can change."""
        text = hashlib.sha256()
        for name, item in self._trained.items():
            text.update(name.encode())
            text.update(item.detach().numpy().tobytes())
        return text.hexdigest()

    def learn(self, lessons: Sequence[DistillationSample]) -> TargetModel:
        """A step along the mean divergence over all positions, at temperature 1; the model to draft with from here on.

        Raises:
            InvalidRequest: weights are no longer finite.
        """
        count = sum(len(lesson.places) for lesson in lessons)
        # the loop decodes in inference mode, whose tensors cannot take part in training
        with torch.inference_mode(mode=False), torch.enable_grad():
            self._optimiser.zero_grad(set_to_none=True)
            for lesson in lessons:
                (self._loss(lesson) / count).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            torch.nn.utils.clip_grad_norm_(self._trained.values(), LONGEST_STEP, foreach=False)
            self._optimiser.step()
            if not all(bool(torch.isfinite(item).all()) for item in self._trained.values()):
                raise InvalidRequest("proposer online: an update gave weights that are not finite; lower learning_rate")
            model, weights = self._model, copied(self._weights)
            return LeanModel(model.config, weights, model.eos_ids, model.facts, model.numerics)

    def _loss(self, lesson: DistillationSample) -> Tensor:
        """The summed divergence at the lesson's places, in nats."""
        logits = forward(self._model.config, self._weights, self._rope, torch.tensor(lesson.tokens))
        q = F.log_softmax(logits[list(lesson.places)], -1)
        p = F.log_softmax(torch.tensor(lesson.rows, dtype=torch.float32), -1).clamp_min(FLOOR)
        return self._divergence(p, q).sum()


def student_of(model: TargetModel, learning_rate: float, divergence: str) -> LeanStudent:
    """A student that begins as `model`.

    Raises:
        InvalidRequest: a model without a lean forward, in another dtype than float32, or elsewhere than on the cpu.
    """
    if not isinstance(model, LeanModel):
        raise InvalidRequest("proposer online: learn needs a draft with loader: lean")
    if model.dtype is not torch.float32 or model.device.type != "cpu":
        raise InvalidRequest("proposer online: learn needs a draft with dtype: float32 and device: cpu")
    return LeanStudent(model, learning_rate, divergence)


def copied(weights: LeanWeights) -> LeanWeights:
    """The same values in tensors of their own, that ask for no gradients; tied weights stay tied."""

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    def affine(other: Affine) -> Affine:
        return Affine(own(other.weight), None if other.bias is None else own(other.bias))

    embedding = own(weights.embedding)
    return LeanWeights(
        embedding=embedding,
        layers=tuple(
            LayerWeights(
                attention_norm=own(layer.attention_norm),
                qkv=affine(layer.qkv),
                qk_norm=None if layer.qk_norm is None else own(layer.qk_norm),
                out=affine(layer.out),
                ffn_norm=own(layer.ffn_norm),
                gate_up=affine(layer.gate_up),
                down=affine(layer.down),
            )
            for layer in weights.layers
        ),
        norm=own(weights.norm),
        head=embedding if weights.head is weights.embedding else own(weights.head),
    )


def trained(weights: LeanWeights) -> dict[str, Tensor]:
    """The tensors that an update changes, by name: all but the norms of queries and keys, which heads share."""
    result = {"embedding": weights.embedding, "norm": weights.norm}
    if weights.head is not weights.embedding:
        result["head"] = weights.head
    for index, layer in enumerate(weights.layers):
        result |= {f"{index}.attention_norm": layer.attention_norm, f"{index}.ffn_norm": layer.ffn_norm}
        for name in ("qkv", "out", "gate_up", "down"):
            affine: Affine = getattr(layer, name)
            result[f"{index}.{name}"] = affine.weight
            if affine.bias is not None:
                result[f"{index}.{name}.bias"] = affine.bias
    return result


def forward(config: LeanConfig, weights: LeanWeights, rope: GrowingRope, tokens: Tensor) -> Tensor:
    """Logits [T, V] of one sequence [T] from its beginning, in operations that gradients go through."""
    x = F.embedding(tokens, weights.embedding)
    turn = rope.at(torch.arange(len(tokens)))
    for layer in weights.layers:
        x = x + _attention(config, layer, turn, _norm(x, layer.attention_norm, config.eps))
        gate, up = _apply(layer.gate_up, _norm(x, layer.ffn_norm, config.eps)).chunk(2, -1)
        x = x + _apply(layer.down, F.silu(gate) * up)
    return F.linear(_norm(x, weights.norm, config.eps), weights.head)


def _attention(config: LeanConfig, layer: LayerWeights, rope: RopeTables, x: Tensor) -> Tensor:
    turned = config.heads + config.kv_heads
    qkv = _apply(layer.qkv, x).view(len(x), turned + config.kv_heads, config.head_dim)
    queries_keys, values = torch.split(qkv, [turned, config.kv_heads], 1)
    if layer.qk_norm is not None:
        queries_keys = _norm(queries_keys, layer.qk_norm, config.eps)
    queries, keys = torch.split(rotated(queries_keys, rope), [config.heads, config.kv_heads], 1)
    group = config.heads // config.kv_heads
    sides = (queries, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1))
    q, k, v = (side.transpose(0, 1) for side in sides)
    seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _apply(layer.out, seen.transpose(0, 1).flatten(1))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _apply(affine: Affine, x: Tensor) -> Tensor:
    return F.linear(x, affine.weight, affine.bias)


@dataclass(slots=True)
class _Notes:
    """The target's rows in one request that are not yet learnt."""

    history: Sequence[int]
    places: list[int] = field(default_factory=list)
    rows: list[NDArray[np.floating[Any]]] = field(default_factory=list)

    def lesson(self) -> DistillationSample:
        """The collected rows as one sample."""
        return DistillationSample(tuple(self.history[: self.places[-1] + 1]), tuple(self.places), np.stack(self.rows))


class OnlineProposer:
    """`draft_model` with a student that periodically provides a new model; None disables learning."""

    def __init__(self, parts: ProposerParts, draft: DraftModelProposer, student: LeanStudent | None) -> None:
        options = read("online", parts.options)
        self._draft = draft
        self._student = student
        self._every = options["update_every"]
        self._rejected_only = options["positions"] == "rejected"
        self._notes: dict[int, _Notes] = {}
        self._closed: list[_Notes] = []
        self._collected = 0
        self._version = versions.first(student.digest()) if student else None
        self.facts = ProposerFacts(
            "online",
            state="shared" if student else "request",
            decided=student is not None,
            version=self._version,
            options=options,
            steady=draft.facts.steady,
            reads_target=student is not None,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> OnlineProposer:
        """From a draft model and its options.

        Raises:
            InvalidRequest: an unknown option, no draft model, or one that cannot learn.
        """
        options = read("online", parts.options)
        if parts.draft is None:
            raise ModelNeeded("proposer online needs a draft model")
        draft = DraftModelProposer(parts, parts.draft, options["stop_below"])
        rate, divergence = options["learning_rate"], options["divergence"]
        return cls(parts, draft, student_of(parts.draft, rate, divergence) if options["learn"] else None)

    def start(self, context: Context) -> None:
        """Read the prompt with the current draft."""
        self._close(context.row)
        self._draft.start(context)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Learn if enough is collected, then draft; every proposal names the version, an empty one too."""
        if self._student and self._collected >= self._every:
            noted = [note for note in (*self._closed, *self._notes.values()) if note.places]
            lessons = [item.lesson() for item in noted]
            self._draft.replace_model(self._student.learn(lessons), contexts)
            assert self._version is not None
            self._version = versions.after(self._version, _update_digest(lessons, self._student.digest()))
            self._closed, self._notes, self._collected = [], {}, 0
        drafted = self._draft.propose(contexts)
        return [replace(item, version=self._version) for item in drafted] if self._version else drafted

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Collect the rows of decided positions."""
        self._draft.observe(context, verdict)
        if context.read.decided is None:
            return
        notes = self._notes.setdefault(context.row, _Notes(context.history))
        first = len(context.history) - len(verdict.emitted)
        for index, emitted in enumerate(verdict.emitted):
            if emitted.role is Role.RECOVERED or not self._rejected_only:
                notes.places.append(first + index - 1)
                notes.rows.append(context.read.decided[index])
                self._collected += 1

    def finish(self, row: int) -> None:
        """Forget the row, but keep the rows collected in it."""
        self._close(row)
        self._draft.finish(row)

    def _close(self, row: int) -> None:
        if row in self._notes:
            self._closed.append(self._notes.pop(row))


def _update_digest(lessons: Sequence[DistillationSample], weights: str) -> str:
    """Hex SHA-256 of each lesson's tokens and places with their counts, as 64-bit integers, its rows as float32,
    little-endian all, and of the digest of the weights that came of it.
    """
    digest = hashlib.sha256()
    for lesson in lessons:
        counted = [len(lesson.tokens), *lesson.tokens, len(lesson.places), *lesson.places]
        digest.update(np.array(counted, dtype="<i8").tobytes())
        digest.update(lesson.rows.astype("<f4").tobytes())
    digest.update(bytes.fromhex(weights))
    return digest.hexdigest()
