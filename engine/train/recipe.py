"""The recipes of the bundled models: sizes, data mixture, optimiser, seeds.

A recipe plus the corpus digest describes how weights came to be. It does not
reproduce them bit by bit on another machine, so weights are shipped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """What the models read."""

    dialogues: int = 90_000
    held_out_dialogues: int = 700
    held_out_files: int = 12
    vocabulary: int = 2048
    seed: int = 1234


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """The size of one llama-architecture model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    context: int = 1024


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """One training run: `steps` batches of `rows` windows of `window` tokens."""

    steps: int
    learning_rate: float
    rows: int = 4
    window: int = 512
    code_share: float = 0.3
    warmup: int = 100
    weight_decay: float = 0.05
    distillation: float = 0.0
    """Weight of KL(target || draft); 1 - weight goes to cross-entropy."""
    seed: int = 0


TARGET_MODEL = ModelRecipe(layers=4, hidden=256, heads=8, kv_heads=4, ffn=688)
DRAFT_MODEL = ModelRecipe(layers=2, hidden=96, heads=4, kv_heads=2, ffn=256)
TARGET_TRAINING = TrainRecipe(steps=6400, learning_rate=2e-3)
DRAFT_TRAINING = TrainRecipe(steps=1800, learning_rate=4e-3, distillation=0.9)
MEDIUM_MODEL = ModelRecipe(layers=10, hidden=256, heads=8, kv_heads=4, ffn=688)
MEDIUM_TRAINING = TrainRecipe(steps=2400, learning_rate=1.2e-3, seed=2)
MEDIUM_DRAFT_LAYERS = (0, 1, 2)
"""Of the target: with any two of its layers alone a draft no longer copies from the prompt."""
MEDIUM_DRAFT_MODEL = ModelRecipe(layers=3, hidden=256, heads=8, kv_heads=4, ffn=256)
MEDIUM_DRAFT_TRAINING = TrainRecipe(steps=600, learning_rate=1.5e-3, distillation=0.9, seed=3)
