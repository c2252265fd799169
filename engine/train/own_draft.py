"""A draft for the user's own target: some of its layers, distilled from it within a time; and the user's text.

The draft learns the target's distribution after every token that the target wrote (Hinton et al. 1503.02531), on the
target's own answers where there are some (DistillSpec, 2310.08461). Embedding and output matrix stay the target's. The
target reads every text once: its last states are kept in memory.

Text is a file of one JSON object per line: {"text": ...}; {"messages": [...]}, which goes through the target's chat
template; or a recorded request, as `audit query texts --format jsonl` writes it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFolder
from engine.models.loading import load_tokenizer
from engine.train import trainer
from engine.train.corpus import Corpus
from engine.train.heads.head_layer import HeadStage, Teacher
from engine.train.passes import PositionLogits
from engine.train.recipe import OWN_DRAFT

PIECE: Final = 256
"""Most tokens that are read at once: the logits of a batch of pieces must fit into memory."""
MEASURED: Final = 1024
"""Tokens of held-out answers that are measured."""
DRAWN: Final = 2048
"""Tokens of a large vocabulary that each step draws beside those of the texts."""
ACCEPTANCE: Final = "acceptance"
HELD_OUT = 20
"""Of this many texts one is held out for measuring; requests with one prompt are one text."""
MIXTURE = 4096
"""Fewest training tokens: a window must fit, and a step should not see the same one twice."""
NOT_EMITTED = "RN"
"""The letters of drafted tokens that a recorded request did not keep."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text's tokens; `answer` is the first that the target wrote, or 1 if it wrote none."""

    tokens: tuple[int, ...]
    answer: int = 1


@dataclass(frozen=True, slots=True)
class OwnText:
    """The texts of a user: those to train on, and those held out."""

    kept: tuple[TokenText, ...]
    held: tuple[TokenText, ...]

    def corpus(self) -> Corpus:
        """All texts one after another; one domain, because the bundled family's two streams are the same here."""
        kept, held = (np.concatenate([text.tokens for text in part]) for part in (self.kept, self.held))
        return Corpus(code=kept, dialogue=kept, held_out={"held_out": held})


def load_text(file: Path, target: ModelFolder) -> OwnText:
    """The file's texts as tokens of the target; each ends with its end token, but for a recorded answer.

    Raises:
        ModelError: an invalid line, or too little text; names file and line.
    """
    tokenizer = load_tokenizer(target)
    if tokenizer is None:
        raise ModelError(f"{target.name()}: no tokenizer; add tokenizer.json")
    vocabulary = target.config["vocab_size"]
    texts: dict[tuple[int, ...], dict[TokenText, None]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            text = _document(line, f"{file}:{number}", tokenizer)
            if max(text.tokens, default=0) >= vocabulary:
                raise ModelError(f"{file}:{number}: another model's; the target has only {vocabulary} tokens")
            if text.answer < len(text.tokens):
                texts.setdefault(text.tokens[: text.answer] if text.answer > 1 else text.tokens, {})[text] = None
    parts: Sequence[list[TokenText]] = ([], [])
    for number, same in enumerate(texts.values()):
        parts[number % HELD_OUT == 0].extend(same)
    count = sum(len(text.tokens) for text in parts[0])
    if count < MIXTURE:
        raise ModelError(
            f"{file}: {count} tokens to train on are too few, besides every {HELD_OUT}th text, which is held out; "
            f"give at least {MIXTURE}: more texts, or more samples and prompts in the suite whose requests these are"
        )
    return OwnText(tuple(parts[0]), tuple(parts[1]))


def _document(line: str, where: str, tokenizer: Any) -> TokenText:
    try:
        match json.loads(line):
            case {"text": str(text)}:
                pass
            case {"messages": list(messages)}:
                text = tokenizer.apply_chat_template(messages, tokenize=False)
            case {"prompt_ids": str(prompt), "token": str(steps), "role": str(roles)}:
                tokens = json.loads(prompt)
                return TokenText((*tokens, *emitted(json.loads(steps), json.loads(roles))), max(1, len(tokens)))
            case _:
                raise ValueError('an object with "text", "messages" or the columns of `audit query texts` is wanted')
    except Exception as error:  # templates raise anything
        raise ModelError(f"{where}: not a text ({' '.join(str(error).split())})") from error
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return TokenText((*tokenizer(text, add_special_tokens=False)["input_ids"], *end))


def emitted(steps: Sequence[Sequence[int]], roles: Sequence[str]) -> Iterator[int]:
    """The tokens that a recorded request kept, by step its tokens and a letter for each."""
    for step, letters in zip(steps, roles, strict=True):
        yield from (token for token, letter in zip(step, letters, strict=True) if letter not in NOT_EMITTED)


def pieces(texts: Iterable[TokenText], longest: int) -> list[TokenText]:
    """The texts cut to at most `longest` tokens; what has no token to predict is left out."""
    cut = (
        TokenText(text.tokens[start : start + longest], max(1, text.answer - start))
        for text in texts
        for start in range(0, len(text.tokens), longest)
    )
    return [piece for piece in cut if piece.answer < len(piece.tokens)]


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

    def compare(self, draft: PreTrainedModel, numbers: Sequence[int], kept: Tensor | None = None) -> PositionLogits:
        """[n, V] logits at all n places of the texts that an answer's token follows, or those of tokens `kept`."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = (self._known(numbers), torch.cat(self._read(draft, numbers)))
            heads = (model.get_output_embeddings().weight for model in (self.teacher.model, draft))
            sides = zip(states, heads, strict=True)
            return PositionLogits(
                *(F.linear(rows, head if kept is None else head[kept]).float() for rows, head in sides)
            )

    @torch.no_grad()
    def measure(self, draft: PreTrainedModel) -> Mapping[str, float]:
        """The means over tokens of sum_x min(p, q), and of whether p and q have the same favourite."""
        said = (self.compare(draft, [number]) for number in range(len(self.texts)))
        rows = np.array([(len(item.target), item.agreement(), item.same_favourite()) for item in said])
        accepted, same = np.average(rows[:, 1:], axis=0, weights=rows[:, 0])
        return {ACCEPTANCE: float(accepted), "argmax agreement": float(same)}

    @torch.no_grad()
    def _known(self, numbers: Sequence[int]) -> Tensor:
        """The target's states, read or remembered."""
        new = [number for number in numbers if number not in self._states]
        states = self._read(self.teacher.model, new) if new else []
        read = {number: item.to(torch.bfloat16, copy=True) for number, item in zip(new, states, strict=True)}
        self.room -= sum(item.numel() for item in read.values())
        known = read | {number: self._states[number] for number in numbers if number not in read}
        if self.room >= 0:
            self._states |= read
        return torch.cat([known[number] for number in numbers])

    def _read(self, model: PreTrainedModel, numbers: Sequence[int]) -> list[Tensor]:
        """[n, hidden] of each text: the last states before the tokens of the answer."""
        texts = [self.texts[number] for number in numbers]
        # padding stands behind the tokens, which do not see it
        padded = pad_sequence([torch.tensor(text.tokens[:-1]) for text in texts], batch_first=True)
        states = model.base_model(padded).last_hidden_state
        return [row[text.answer - 1 : len(text.tokens) - 1] for row, text in zip(states, texts, strict=True)]


def sampled_loss(lessons: Lessons, draft: PreTrainedModel, numbers: Sequence[int], likely: NDArray[np.int64]) -> Tensor:
    """The cross-entropy over the `likely` tokens and a few of the others, which stand for all others.

    Over 49,152 tokens the softmax would take most of a step's time. `numbers` decide which tokens are drawn.
    """
    others = np.setdiff1d(np.arange(lessons.teacher.config.vocabulary), likely)
    if len(others) <= DRAWN:
        return lessons.compare(draft, numbers).loss()
    chance = np.random.default_rng(numbers).choice(others, DRAWN, replace=False)
    said = lessons.compare(draft, numbers, torch.from_numpy(np.concatenate([likely, chance])))
    weight = torch.zeros(len(likely) + DRAWN)
    weight[len(likely) :] = math.log(len(others) / DRAWN)
    return PositionLogits(said.target + weight, said.draft + weight).loss()


def kept_layers(layers: int, count: int) -> tuple[int, ...]:
    """The first and the last ones: of SmolLM2's 30 better than the first alone, and than evenly spaced ones."""
    early = (count + 1) // 2
    return (*range(early), *range(layers - count + early, layers))


def train_draft(stage: HeadStage, text: OwnText, layers: int | None = None) -> Mapping[str, Mapping[str, float]]:
    """Train and write a draft of some layers, by default a fifth; the held-out measurements `before` and `after`.

    Raises:
        ModelError: as many layers as the target has, or more; a checkpoint of another training.
    """
    teacher, most = stage.teacher, stage.teacher.config.layers - 1
    count = max(1, round((most + 1) / 5)) if layers is None else layers
    if not 1 <= count <= most:
        raise ModelError(f"--layers {count}: the target has {most + 1}; keep at least 1 and at most {most}")
    kept, held = (Lessons(teacher, pieces(part, min(PIECE, teacher.config.context))) for part in (text.kept, text.held))
    ends = np.cumsum([len(item.tokens) - item.answer for item in held.texts])
    held.texts = held.texts[: 1 + int(np.searchsorted(ends, MEASURED))]
    likely = np.unique(np.concatenate([item.tokens for item in kept.texts]))
    model = trainer.prune(teacher.model, kept_layers(most + 1, count))
    for matrix in (model.get_input_embeddings(), model.get_output_embeddings()):
        matrix.requires_grad_(False)
    before = held.measure(model)
    stage.train(
        model,
        OWN_DRAFT,
        loss=lambda numbers: sampled_loss(kept, model, numbers.tolist(), likely),
        measure=lambda: held.measure(model),
        batch=kept.batch,
        best=ACCEPTANCE,
    )
    stage.write_model(model)
    return {"before": before, "after": held.measure(model)}
