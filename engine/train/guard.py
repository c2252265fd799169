"""The bundled sequence classifier: a small llama that labels one sentence, in the style of Llama Guard.

It knows the deeds of `engine.train.guard_sentences` and their like: it exists to exercise filters, and protects nobody.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

from engine.models.files.folder import model_digest, open_folder, tokenizer_digest
from engine.train.guard_sentences import LABELS, SAFE, LabelledSentence, sentences
from engine.train.recipe import GUARD, CorpusRecipe, GuardRecipe
from engine.train.trainer import learning_rate

Say = Callable[[str], None]
REPORT_EVERY = 100
PAD = 2
"""The token id that pads a batch, as in every bundled model."""


def make_guard(tokenizer_folder: Path, out: Path, say: Say, recipe: GuardRecipe = GUARD) -> None:
    """Train the classifier, and write it with its tokenizer and its card."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    network = train(new_guard(recipe), tokenizer, recipe, say)
    network.to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    write_guard_card(out, recipe)


def new_guard(recipe: GuardRecipe) -> LlamaForSequenceClassification:
    """A classifier with random weights."""
    torch.manual_seed(recipe.training.seed)
    size = recipe.model
    config = LlamaConfig(
        vocab_size=CorpusRecipe().vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.context,
        eos_token_id=0,
        bos_token_id=1,
        pad_token_id=PAD,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return LlamaForSequenceClassification(config)


def train(
    network: LlamaForSequenceClassification, tokenizer: Any, recipe: GuardRecipe, say: Say
) -> LlamaForSequenceClassification:
    """Cross-entropy over the labels; the batch of step n depends on (seed, n) only."""
    training = recipe.training
    shown = sentences(recipe.sentences, training.seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    network.train()
    for step in range(training.steps):
        rows = np.random.default_rng((training.seed, step)).integers(0, len(shown), training.rows)
        batch = [shown[row] for row in rows]
        loss = F.cross_entropy(scores(network, tokenizer, batch), _indices(batch))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(training, step, step / training.steps)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % REPORT_EVERY == 0:
            say(f"step {step + 1}: loss {loss.item():.4f}")
    return network.eval()


def scores(network: Any, tokenizer: Any, batch: Sequence[LabelledSentence]) -> torch.Tensor:
    """Logits [sentences, labels]."""
    tokens = tokenizer([item.text for item in batch], return_tensors="pt", padding=True)
    logits: torch.Tensor = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
    return logits.float()


def _indices(batch: Sequence[LabelledSentence]) -> torch.Tensor:
    return torch.tensor([LABELS.index(item.label) for item in batch])


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
        "format": 1,
        "name": folder.name,
        "model_sha256": model_digest(files),
        "tokenizer_sha256": tokenizer_digest(files),
        "files": {file.name: file.sha256 for file in files},
        "labels": list(LABELS),
        "training": asdict(recipe),
        "held_out": measured(folder, recipe),
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
