"""Markov chains as models: folders of weights whose law is known exactly, in any engine that runs llama models.

The one decoder layer has projections of zero, so it leaves the embedding as it is, and the logits after each token are
a row of a table. `suites/models/chain` and `chain_draft` are such folders. No token ends an answer: the end token has a
logit of `NEVER`.

An engine's tokens are judged against the law without a reference run, by two tests, Holm-adjusted: a score test towards
the draft's law and a chi-square test of all transitions. A sound engine fails with probability `ALPHA`.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from audit.stats.anytime.scores import LeakEstimate, leak_estimate, leak_scores, moments, picked, score_test
from audit.stats.laws import chi2_sf
from audit.stats.multiplicity import holm
from audit.stats.power import detectable_shift
from engine.core.types import Floats, SamplingParams
from engine.sampling.transforms import transform

VOCABULARY: Final = 16
NEVER: Final = -1e4
END: Final = 0
PAD: Final = 1
FIRST: Final = 2
"""Tokens below are never drawn."""
LETTERS: Final = "abcdefghijklmn"
SPECIAL: Final = ("<|end|>", "<|pad|>")
SEED: Final = 1
"""Of the packaged chains."""
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": PAD,
    "dtype": "float32",
    "eos_token_id": END,
    "head_dim": VOCABULARY,
    "hidden_act": "silu",
    "hidden_size": VOCABULARY,
    "intermediate_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "pad_token_id": PAD,
    "rms_norm_eps": 1e-12,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}
ALPHA: Final = 1e-3
LEAST: Final = 5
"""Cells that expect fewer tokens are joined."""


@dataclass(frozen=True, slots=True)
class Tables:
    """[V, V] logits of the token after each one."""

    target: Floats
    draft: Floats


def tables(seed: int, distance: float = 1.5) -> Tables:
    """The draft is the target with noise of that standard deviation on its logits."""
    generator = np.random.default_rng(seed)
    target = generator.normal(size=(VOCABULARY, VOCABULARY)) * 1.5
    draft = target + generator.normal(size=target.shape) * distance
    for table in (target, draft):
        table[:, :FIRST] = NEVER
    return Tables(target, draft)


def softmax(table: Floats) -> Floats:
    """The law after each token at temperature 1."""
    weights: Floats = np.exp(table - table.max(axis=1, keepdims=True))
    total: Floats = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / total)


def leaking(given: Tables, share: float) -> Tables:
    """The target's law with a share of the draft's in it."""
    mixed = (1 - share) * softmax(given.target) + share * softmax(given.draft)
    logits = np.log(np.maximum(mixed, np.finfo(float).tiny))
    return replace(given, target=np.maximum(logits, NEVER))


def law(table: Floats, sampling: SamplingParams) -> Floats:
    """[V, V] the exact law after each token, by this project's transforms."""
    rows = enumerate(table.astype(np.float32))
    return np.stack([transform(row, [at], 1, sampling, (END,)).p for at, row in rows])


def write_chain(folder: Path, table: Floats) -> Path:
    """A new folder of the model, and of a tokenizer of one letter per token."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(table), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", "utf-8")
    vocabulary: dict[str, int] = {token: at for at, token in enumerate((*SPECIAL, *LETTERS))}
    _tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[END], "pad_token": SPECIAL[PAD]}
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")
    return folder


def _weights(table: Floats) -> dict[str, Any]:
    """The norm of a unit vector multiplies it by the root of its size, which the head divides out."""
    square: Any = np.zeros((VOCABULARY, VOCABULARY), np.float32)
    ones: Any = np.ones(VOCABULARY, np.float32)
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    layer = {f"{part}.weight": square.copy() for part in parts}
    layer |= {f"{norm}_layernorm.weight": ones.copy() for norm in ("input", "post_attention")}
    return {f"model.layers.0.{name}": tensor for name, tensor in layer.items()} | {
        "model.embed_tokens.weight": np.eye(VOCABULARY, dtype=np.float32),
        "model.norm.weight": ones,
        "lm_head.weight": np.ascontiguousarray((table.T / np.sqrt(VOCABULARY)).astype(np.float32)),
    }


def _tokenizer(vocabulary: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models

    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


@dataclass(frozen=True, slots=True)
class Walk:
    """[E] each token and the one before it."""

    before: NDArray[np.int64]
    token: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChainJudgement:
    """The smaller of both adjusted p-values, the estimated share of the draft's law, and the number of tokens."""

    p: float
    leak: LeakEstimate
    tokens: int

    @property
    def departs(self) -> bool:
        """True if the tokens are not the chain's."""
        return self.p < ALPHA

    def needed(self, share: float) -> int:
        """The tokens that show such a leak with probability 0.9."""
        return round(self.tokens * (detectable_shift(ALPHA / 4) * self.leak.error / share) ** 2)


def judge_walk(seen: Walk, p: Floats, q: Floats) -> ChainJudgement:
    """The judgement under the laws p and q after each token, [V, V]."""
    own, towards = p[seen.before], q[seen.before]
    scores = leak_scores(own, towards)
    expected, observed = moments(scores, own), picked(scores, seen.token)
    score = score_test(observed, expected, 1.0)
    leak = leak_estimate(observed, expected, np.sum(towards * scores, axis=1))
    return ChainJudgement(min(holm([score.p, transitions(seen, p)])), leak, len(seen.token))


def transitions(seen: Walk, p: Floats) -> float:
    """The p-value of a chi-square test given the tokens before; 0 if a token has probability 0."""
    counts = np.zeros_like(p)
    np.add.at(counts, (seen.before, seen.token), 1)
    if counts[p == 0].any():
        return 0.0
    statistic, freedom = 0.0, 0
    for row, made in zip(p[FIRST:], counts[FIRST:], strict=True):
        cells, due = _joined(made, row * made.sum())
        statistic += float(np.sum((cells - due) ** 2 / due))
        freedom += max(len(due) - 1, 0)
    return float(chi2_sf(statistic, freedom))


def _joined(made: Floats, due: Floats) -> Floats:
    """[2, cells] what was made and what was due, cells that expect too few together."""
    wide = due >= LEAST
    both = np.array([[*values[wide], values[~wide].sum()] for values in (made, due)])
    return np.asarray(both[:, both[1] > 0])
