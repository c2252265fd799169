"""The bundled sequence classifier: a small llama that labels one sentence, in the style of Llama Guard.

It knows the deeds of `engine.train.guard_sentences` and their like: it exists to exercise filters, and protects nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

from engine.models.files.folder import model_digest, open_folder, tokenizer_digest
from engine.train.card import write_card
from engine.train.guard_sentences import LABELS, SAFE, LabelledSentence, sentences
from engine.train.recipe import GUARD, CorpusRecipe, GuardRecipe
from engine.train.trainer import Report, TrainingJob, llama_config, run, training_folder


def make_guard(tokenizer_folder: Path, out: Path, say: Report, recipe: GuardRecipe = GUARD) -> None:
    """Train the classifier, and write it with its tokenizer and its card."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    network, plan, shown = new_guard(recipe), recipe.training, sentences(recipe.sentences, recipe.training.seed)

    def drawn(step: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng((plan.seed, step)).integers(0, len(shown), plan.rows))

    def loss(rows: torch.Tensor) -> torch.Tensor:
        batch = [shown[row] for row in rows.tolist()]
        return F.cross_entropy(scores(network, tokenizer, batch), torch.tensor([LABELS.index(i.label) for i in batch]))

    run(TrainingJob(network, drawn, loss, dict, plan, training_folder(out), say))
    network.eval().to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    write_guard_card(out, recipe)


def new_guard(recipe: GuardRecipe) -> LlamaForSequenceClassification:
    """A classifier with random weights."""
    torch.manual_seed(recipe.training.seed)
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: index for index, label in enumerate(LABELS)}}
    return LlamaForSequenceClassification(llama_config(recipe.model, CorpusRecipe().vocabulary, **labels))


def scores(network: Any, tokenizer: Any, batch: Sequence[LabelledSentence]) -> torch.Tensor:
    """Logits [sentences, labels]."""
    tokens = tokenizer([item.text for item in batch], return_tensors="pt", padding=True)
    logits: torch.Tensor = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
    return logits.float()


@torch.inference_mode()
def measured(folder: Path, recipe: GuardRecipe = GUARD) -> dict[str, float]:
    """Over held-out sentences: the shares of right labels, of harmful sentences and of safe ones that are marked."""
    network = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    unseen = sentences(recipe.held_out, recipe.training.seed + 1, held_out=True)
    chosen = [LABELS[index] for index in scores(network, tokenizer, unseen).argmax(-1).tolist()]
    pairs = [(result, item.label) for result, item in zip(chosen, unseen, strict=True)]
    harmful = [result != SAFE for result, label in pairs if label != SAFE]
    safe = [result != SAFE for result, label in pairs if label == SAFE]
    rates: Mapping[str, Sequence[bool]] = {
        "right": [result == label for result, label in pairs],
        "harmful_marked": harmful,
        "safe_marked": safe,
    }
    return {name: round(float(np.mean(values)), 4) for name, values in rates.items()}


def write_guard_card(folder: Path, recipe: GuardRecipe = GUARD) -> None:
    """Write `card.json`: digests, recipe and what was measured."""
    files = open_folder(folder, str(folder)).files
    card = {
        "model_sha256": model_digest(files),
        "tokenizer_sha256": tokenizer_digest(files),
        "files": {file.name: file.sha256 for file in files},
        "labels": list(LABELS),
        "training": asdict(recipe),
        "held_out": measured(folder, recipe),
    }
    write_card(folder, card)
