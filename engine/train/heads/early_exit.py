"""Training a target whose early layers can draft: the early-exit loss of LayerSkip (Elhoushi et al. 2404.16710).

After every layer the model's own norm and output matrix predict the next token, and
the cross-entropies of all exits are summed. Labels are the softmax of the untrained target, so that the final law
stays near the original. LayerSkip's other half, dropping layers at random, is omitted because a model of a few layers
has none to spare. The result is another target with its own weights, trained for no particular exit.
"""

import copy
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.train.corpus import Corpus
from engine.train.heads.head_layer import HeadStage
from engine.train.passes import PositionLogits, agreements
from engine.train.recipe import EARLY_EXIT, EarlyExitRecipe


def exit_weights(layers: int, scale: float) -> tuple[float, ...]:
    """The weight of each layer's loss, the last one's at the end; they add up to 1 (equation 5 of the paper).

    An exit after layer l, counted from 0, weighs scale times 0 + 1 + ... + l, and the whole model's loss layers - 1
    more than the exit before it, so the first exit has weight 0: one layer cannot learn the target.
    """
    early = [scale * layer * (layer + 1) / 2 for layer in range(layers - 1)]
    raw = [*early, layers - 1 + scale * (layers - 2) * (layers - 1) / 2 if layers > 1 else 1.0]
    return tuple(item / sum(raw) for item in raw)


def exits(model: LlamaForCausalLM, tokens: Tensor) -> Iterator[Tensor]:
    """[rows, T, V] logits after each layer of tokens [rows, T], the whole model's last."""
    said = model(tokens, output_hidden_states=True)
    # the last hidden state that transformers gives is normed already: those are the model's own logits
    yield from (model.lm_head(model.model.norm(states)).float() for states in said.hidden_states[1:-1])
    yield said.logits.float()


def loss_of(model: LlamaForCausalLM, teacher: LlamaForCausalLM, tokens: Tensor, plan: EarlyExitRecipe) -> Tensor:
    """Of windows [rows, window + 1]: each exit's cross-entropy to the teacher's softmax, weighted."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        read = tokens[:, :-1]
        with torch.no_grad():
            truth = teacher(read).logits.float().softmax(-1)
        weights = exit_weights(len(model.model.layers), plan.scale)
        losses = (-(truth * F.log_softmax(tensor, -1)).sum(-1).mean() for tensor in exits(model, read))
        return torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum()


def exit_agreements(model: LlamaForCausalLM, corpus: Corpus, window: int) -> Mapping[str, float]:
    """The rate at which the whole model would accept a token drawn at each exit, on held-out text."""

    def passes(tokens: Tensor) -> Iterator[PositionLogits]:
        *early, last = exits(model, tokens)
        return (PositionLogits(last, item) for item in early)

    mapping = agreements(corpus, window, passes)
    return {f"exit after layer {i + 1}": value for i, value in enumerate(mapping.values())}


def train_early_exit(stage: HeadStage, plan: EarlyExitRecipe = EARLY_EXIT) -> None:
    """Continue training from the target; write the new one in bfloat16."""
    model, teacher = copy.deepcopy(stage.teacher.model), stage.teacher.model
    stage.train(
        model,
        plan.training,
        loss=lambda tokens: loss_of(model, teacher, tokens, plan),
        measure=lambda: exit_agreements(model, stage.corpus, plan.training.window),
    )
    stage.write_model(model)
