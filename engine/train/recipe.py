"""The recipes of the bundled models: sizes, data mixture, optimiser, seeds.

A recipe plus the corpus digest describes how weights came to be. It does not
reproduce them bit by bit on another machine, so weights are shipped.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """The models' training text."""

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
OWN_DRAFT = TrainRecipe(steps=0, learning_rate=2e-3, rows=8, warmup=20, weight_decay=0.0)
"""A draft of the user's own target; its training ends by time, and its rows are texts."""
MEDIUM_DRAFT_TRAINING = TrainRecipe(steps=600, learning_rate=1.5e-3, distillation=0.9, seed=3)


@dataclass(frozen=True, slots=True)
class EagleRecipe:
    """A head of EAGLE-1 (arXiv:2401.15077): one layer that continues the target's features."""

    training: TrainRecipe
    ffn: int
    noise: float = 0.1
    """Half the width of the uniform noise on the features that the head reads."""
    token_weight: float = 0.1
    """Weight of the cross-entropy beside the features' smooth L1 loss."""


@dataclass(frozen=True, slots=True)
class UnrolledRecipe:
    """One layer, unrolled on its own outputs: a multi-token prediction module (FastMTP, arXiv:2509.18362)."""

    training: TrainRecipe
    ffn: int
    unroll: int = 3
    decay: float = 0.6
    """Each unrolled pass weighs this much of the one before it."""


@dataclass(frozen=True, slots=True)
class Eagle3Recipe(UnrolledRecipe):
    """A head of EAGLE-3 (arXiv:2503.01840): such a layer on three hidden states."""

    decay: float = 0.8
    aux_layers: tuple[int, ...] = (1, 2, 3)
    """The fused hidden states of the target, as HF counts them."""
    draft_vocabulary: int = 1024
    """The most frequent tokens of the corpus."""


EAGLE_HEAD = EagleRecipe(TrainRecipe(steps=1200, learning_rate=6e-3, window=256, warmup=40, seed=4), ffn=688)
EAGLE3_HEAD = Eagle3Recipe(
    TrainRecipe(steps=2400, learning_rate=5e-3, window=256, warmup=40, seed=5), ffn=512, draft_vocabulary=1536
)


@dataclass(frozen=True, slots=True)
class MedusaRecipe:
    """Medusa heads (arXiv:2401.10774), each with an output matrix of its own."""

    training: TrainRecipe
    heads: int
    layers: int = 1
    known_share: float = 1.0
    """The heads cover the most frequent tokens that make up this share of the corpus; 1 means all tokens."""


MEDUSA_HEADS = MedusaRecipe(
    TrainRecipe(steps=1100, learning_rate=3e-3, window=256, warmup=40, weight_decay=0.0, seed=6), heads=3
)


@dataclass(frozen=True, slots=True)
class EarlyExitRecipe:
    """A target trained on with the early-exit loss of LayerSkip (arXiv:2404.16710)."""

    training: TrainRecipe
    scale: float = 1.0
    """The weight of exits relative to the whole model."""


EARLY_EXIT = EarlyExitRecipe(TrainRecipe(steps=600, learning_rate=1e-3, window=256, warmup=40, seed=10))


MTP_HEAD = UnrolledRecipe(TrainRecipe(steps=500, learning_rate=3e-3, window=256, warmup=40, seed=7), ffn=512)


@dataclass(frozen=True, slots=True)
class MlpSpeculatorRecipe:
    """A short recurrence of one stage per drafted token (arXiv:2404.19124)."""

    training: TrainRecipe
    stages: int
    inner: int
    """Size of the state."""
    tied: bool = True
    """All stages share one embedding, norm and output matrix, and all but the first one projection."""
    scale_input: bool = True
    """The target's state is normed first."""


MLP_SPECULATOR = MlpSpeculatorRecipe(
    TrainRecipe(steps=1500, learning_rate=5e-3, window=256, warmup=40, weight_decay=0.0, seed=9), stages=4, inner=160
)


@dataclass(frozen=True, slots=True)
class DFlashRecipe:
    """A block drafter (DFlash, arXiv:2602.06036)."""

    training: TrainRecipe
    layers: int
    ffn: int
    target_layers: tuple[int, ...]
    """Whose outputs it reads, counted from 0."""
    block: int = 8
    """The anchor and the masks."""
    anchors: int = 24
    """Blocks per window."""
    reach: float = 4.0
    """Mask i weighs exp(-i / reach)."""


DFLASH_HEAD = DFlashRecipe(
    TrainRecipe(steps=600, learning_rate=3e-3, window=256, warmup=40, seed=8),
    layers=2,
    ffn=384,
    target_layers=(1, 2, 3),
)


@dataclass(frozen=True, slots=True)
class GuardRecipe:
    """The classifier of sentences; `rows` of its training are sentences."""

    model: ModelRecipe
    training: TrainRecipe
    sentences: int
    held_out: int


GUARD = GuardRecipe(
    ModelRecipe(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, context=512),
    TrainRecipe(steps=1500, learning_rate=3e-3, rows=48, warmup=40, seed=11),
    sentences=24_000,
    held_out=900,
)
