"""``python -m engine.train STAGE ...``: build the reference family.

Every stage reads and writes one work folder and can be interrupted and resumed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from engine.train import corpus, recipe, trainer
from engine.train.card import PAIRS, CardSources, write_cards
from engine.train.prompts import write_prompts


def say(text: str) -> None:
    """Progress goes to stderr."""
    print(text, file=sys.stderr, flush=True)


def make_corpus(work: Path) -> None:
    """Stage 1: tokenizer and token streams."""
    corpus.build(recipe.CorpusRecipe(), work / "corpus")


def make_target(work: Path) -> None:
    """Stage 2: the target, from scratch."""
    data = corpus.load(work / "corpus")
    model = trainer.new_model(recipe.TARGET_MODEL, recipe.CorpusRecipe().vocabulary, seed=0)
    trainer.train(model, data, recipe.TARGET_TRAINING, work / "target-training", say)
    export(model, work, "target")


def make_draft(work: Path) -> None:
    """Stage 3: the draft, distilled from the target."""
    data = corpus.load(work / "corpus")
    teacher = LlamaForCausalLM.from_pretrained(work / "target").eval()
    model = trainer.new_model(recipe.DRAFT_MODEL, recipe.CorpusRecipe().vocabulary, seed=1)
    trainer.train(model, data, recipe.DRAFT_TRAINING, work / "draft-training", say, teacher)
    export(model, work, "draft")


def make_medium(work: Path) -> None:
    """Stage 4: the medium target, grown from the target."""
    data = corpus.load(work / "corpus")
    model = trainer.grow(LlamaForCausalLM.from_pretrained(work / "target"), recipe.MEDIUM_MODEL)
    trainer.train(model, data, recipe.MEDIUM_TRAINING, work / "medium-training", say)
    export(model.to(torch.bfloat16), work, "medium")


def make_medium_draft(work: Path) -> None:
    """Stage 5: the draft of the medium target: three narrowed layers of the target, distilled from it."""
    data = corpus.load(work / "corpus")
    teacher = LlamaForCausalLM.from_pretrained(work / "medium", dtype=torch.float32).eval()
    source = LlamaForCausalLM.from_pretrained(work / "target")
    model = trainer.prune(source, recipe.MEDIUM_DRAFT_LAYERS, recipe.MEDIUM_DRAFT_MODEL.ffn)
    trainer.train(model, data, recipe.MEDIUM_DRAFT_TRAINING, work / "medium-draft-training", say, teacher)
    export(model.to(torch.bfloat16), work, "medium_draft")


def export(model: LlamaForCausalLM, work: Path, name: str) -> None:
    """Weights as they are in memory, with the tokenizer beside them, as hub models come."""
    model.eval().save_pretrained(work / name, safe_serialization=True)
    PreTrainedTokenizerFast.from_pretrained(work / "corpus" / "tokenizer").save_pretrained(work / name)


def make_prompts(work: Path) -> None:
    """Prompts for the packaged suites, from the same generators with another seed."""
    write_prompts(work / "prompts", count=50)


def make_cards(work: Path) -> None:
    """The cards, measured on the models in `work`."""
    for pair in PAIRS:
        if (work / pair.draft.folder).exists():
            write_cards(CardSources(work, work), pair)


STAGES = {
    "corpus": make_corpus,
    "target": make_target,
    "draft": make_draft,
    "medium": make_medium,
    "medium-draft": make_medium_draft,
    "prompts": make_prompts,
    "cards": make_cards,
}


def main() -> None:
    """Run the named stages in order."""
    parser = argparse.ArgumentParser(prog="python -m engine.train", description=__doc__)
    parser.add_argument("stages", nargs="+", choices=sorted(STAGES))
    parser.add_argument("--work", type=Path, required=True, help="work folder, kept between runs")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for stage in arguments.stages:
        STAGES[stage](arguments.work)


if __name__ == "__main__":
    main()
