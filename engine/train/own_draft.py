"""A draft for the user's own target: some of its layers, distilled from it within a time.

The draft learns the target's distribution after every token that the target wrote: cross-entropy to its softmax
(Hinton et al. 1503.02531), on the target's own answers where there are some (DistillSpec, 2310.08461). Embedding and
output matrix stay the target's, because they hold most of a small model's weights and little of what pruning broke.
The target reads every text once: its last states are kept in memory.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from engine.core.errors import ModelError
from engine.models.files.folder import TOKENIZER_PATTERNS
from engine.models.loading import RESPONSE_TEMPLATE
from engine.train import trainer
from engine.train.heads.head_layer import Teacher
from engine.train.passes import PositionLogits
from engine.train.recipe import OWN_DRAFT
from engine.train.trainer import Report, TrainingJob, training_folder
from engine.train.user_data import OwnText, TokenText

PIECE: Final = 256
"""Most tokens that are read at once: the logits of a batch of pieces must fit into memory."""
MEASURED: Final = 1024
"""Tokens of held-out answers that are measured."""
DRAWN: Final = 2048
"""Tokens of a large vocabulary that each step draws beside those of the texts."""
ACCEPTANCE: Final = "acceptance"


def pieces(texts: Iterable[TokenText], longest: int) -> list[TokenText]:
    """The texts cut to at most `longest` tokens; what has no token to predict is left out."""
    result = []
    for text in texts:
        for start in range(0, len(text.tokens), longest):
            tokens = text.tokens[start : start + longest]
            answer = max(1, text.answer - start)
            if answer < len(tokens):
                result.append(TokenText(tokens, answer))
    return result


@dataclass(frozen=True, slots=True)
class VocabularyPart:
    """Some tokens [V'], and what to add to their logits so that a softmax's sum estimates that over all tokens."""

    tokens: Tensor
    offset: Tensor

    @classmethod
    def drawn(cls, likely: NDArray[np.int64], vocabulary: int, numbers: Sequence[int]) -> VocabularyPart | None:
        """The likely tokens and some others, by a chance that `numbers` fix; None, for all tokens, if these are few."""
        others = np.setdiff1d(np.arange(vocabulary), likely)
        if len(others) <= DRAWN:
            return None
        chance = np.random.default_rng(numbers).choice(others, DRAWN, replace=False)
        offset = torch.zeros(len(likely) + DRAWN)
        offset[len(likely) :] = math.log(len(others) / DRAWN)
        return cls(torch.from_numpy(np.concatenate([likely, chance])), offset)


@dataclass(slots=True)
class Lessons:
    """Texts with the target's predictions of their answers; `room` for this many numbers of its states in memory."""

    teacher: Teacher
    texts: Sequence[TokenText]
    room: int = 2**28
    _states: dict[int, Tensor] = field(default_factory=dict)

    def batch(self, step: int) -> Tensor:
        """[rows] numbers of texts: all, one after another, in the order of the epoch."""
        rows, count = OWN_DRAFT.rows, len(self.texts)
        drawn = [divmod(place, count) for place in range(step * rows, (step + 1) * rows)]
        orders = {epoch: np.random.default_rng((OWN_DRAFT.seed, epoch)).permutation(count) for epoch, _ in drawn}
        return torch.tensor([orders[epoch][place] for epoch, place in drawn])

    def compare(self, draft: PreTrainedModel, numbers: Tensor, part: VocabularyPart | None = None) -> PositionLogits:
        """[n, V] logits at all n places of the texts that an answer's token follows, or those of a `part` of V."""
        chosen = [int(number) for number in numbers]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            known = torch.cat([self._known(number) for number in chosen])
            states = torch.cat(self._read(draft, chosen))
            pairs = ((known, self.teacher.head), (states, draft.get_output_embeddings().weight))
            if part is None:
                return PositionLogits(*(F.linear(rows, head).float() for rows, head in pairs))
            return PositionLogits(*(F.linear(rows, head[part.tokens]).float() + part.offset for rows, head in pairs))

    @torch.no_grad()
    def measure(self, draft: PreTrainedModel) -> Mapping[str, float]:
        """The means over tokens of sum_x min(p, q), and of whether p and q have the same favourite."""
        draft.eval()
        rows = [(len(said.target), said.agreement(), said.same_favourite()) for said in self.all(draft)]
        draft.train()
        count, accepted, same = np.asarray(rows).T
        return {ACCEPTANCE: float(accepted @ count / count.sum()), "argmax": float(same @ count / count.sum())}

    def all(self, draft: PreTrainedModel) -> Iterator[PositionLogits]:
        """The comparisons of all texts, some at a time."""
        for first in range(0, len(self.texts), OWN_DRAFT.rows):
            yield self.compare(draft, torch.arange(first, min(first + OWN_DRAFT.rows, len(self.texts))))

    @torch.no_grad()
    def _known(self, number: int) -> Tensor:
        states = self._states.get(number)
        if states is None:
            states = self._read(self.teacher.model, [number])[0].to(torch.bfloat16)
            self.room -= states.numel()
            if self.room >= 0:
                self._states[number] = states
        return states

    def _read(self, model: PreTrainedModel, numbers: Sequence[int]) -> list[Tensor]:
        """[n, hidden] of each text: the last states before the tokens of the answer."""
        texts = [self.texts[number] for number in numbers]
        # padding stands behind the tokens, which do not see it
        padded = pad_sequence([torch.tensor(text.tokens[:-1]) for text in texts], batch_first=True)
        states = model.base_model(padded).last_hidden_state
        return [row[text.answer - 1 : len(text.tokens) - 1] for row, text in zip(states, texts, strict=True)]


def layer_choices(layers: int, kept: int) -> list[tuple[int, ...]]:
    """Layers to keep, in order: evenly spaced with the first and the last, the first, the first and last halves."""
    spaced = tuple(round(i * (layers - 1) / max(kept - 1, 1)) for i in range(kept))
    early = (kept + 1) // 2
    halves = (*range(early), *range(layers - kept + early, layers))
    return list(dict.fromkeys([spaced, tuple(range(kept)), halves]))


def start(teacher: Teacher, held: Lessons, kept: int, report: Report) -> PreTrainedModel:
    """The best of some prunings by held-out cross-entropy; its embedding and output matrix are frozen."""
    models = {}
    for layers in layer_choices(teacher.config.layers, kept):
        model = trainer.prune(teacher.model, layers)
        with torch.no_grad():
            loss = float(np.mean([said.loss().item() for said in held.all(model)]))
        report(f"layers {', '.join(map(str, layers))}: held-out cross-entropy {loss:.3f}")
        models[loss] = model
    best = models[min(models)]
    for matrix in (best.get_input_embeddings(), best.get_output_embeddings()):
        matrix.requires_grad_(False)
    return best


@dataclass(frozen=True, slots=True)
class DraftStage:
    """One draft's training: the target and its folder, the text, the folder to write, how many layers, the time."""

    target: Path
    teacher: Teacher
    text: OwnText
    out: Path
    layers: int | None
    minutes: float
    report: Report
    clock: Callable[[], float] = time.monotonic

    def kept(self) -> int:
        """The number of layers, a fifth of the target's by default.

        Raises:
            ModelError: as many as the target has, or more.
        """
        most = self.teacher.config.layers - 1
        kept = max(1, round((most + 1) / 5)) if self.layers is None else self.layers
        if not 1 <= kept <= most:
            raise ModelError(f"--layers {kept}: {self.target} has {most + 1}; keep at least 1 and at most {most}")
        return kept


def train_draft(stage: DraftStage) -> Mapping[str, Mapping[str, float]]:
    """Train and write the draft; the held-out measurements `before` and `after`.

    Raises:
        ModelError: too many layers, or a checkpoint of another training.
    """
    longest = min(PIECE, stage.teacher.config.context)
    kept, held = (Lessons(stage.teacher, pieces(part, longest)) for part in (stage.text.kept, stage.text.held))
    held.texts = _measured_part(held.texts)
    model = start(stage.teacher, held, stage.kept(), stage.report)
    before = held.measure(model)
    likely = np.unique(np.concatenate([text.tokens for text in kept.texts]))

    def drawn(numbers: Tensor) -> VocabularyPart | None:
        return VocabularyPart.drawn(likely, stage.teacher.config.vocabulary, numbers.tolist())

    job = TrainingJob(
        module=model,
        batch=kept.batch,
        loss=lambda numbers: kept.compare(model, numbers, drawn(numbers)).loss(),
        measure=lambda: held.measure(model),
        recipe=OWN_DRAFT,
        folder=training_folder(stage.out),
        report=stage.report,
        minutes=stage.minutes,
        best=ACCEPTANCE,
        clock=stage.clock,
    )
    trainer.run(job)
    write(model, stage.target, stage.out)
    return {"before": before, "after": held.measure(model)}


def _measured_part(texts: Sequence[TokenText]) -> list[TokenText]:
    ends = np.cumsum([len(text.tokens) - text.answer for text in texts])
    return list(texts[: 1 + int(np.searchsorted(ends, MEASURED))])


def write(model: PreTrainedModel, target: Path, out: Path) -> None:
    """The model in bfloat16, with the target's own tokenizer files."""
    model.eval().to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    for pattern in (*TOKENIZER_PATTERNS, RESPONSE_TEMPLATE):
        for file in target.glob(pattern):
            (out / file.relative_to(target)).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, out / file.relative_to(target))
