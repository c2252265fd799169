"""``python -m engine.train STAGE ...``: build the reference family, or train a draft or a head for any target.

Every stage reads and writes one work folder and can be interrupted and resumed. The
stages `draft`, `early_exit` and those of heads also take a target and the user's own text:
``python -m engine.train draft --target FOLDER --data FILE --out FOLDER --minutes 10``.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

from engine.core.errors import EngineError, ModelError
from engine.core.registry import HEAD_TRAINERS, resolve
from engine.train import corpus, recipe, trainer
from engine.train.card import PAIRS, TRAININGS, write_cards, write_exit_card, write_head_card
from engine.train.chat import write_response_template
from engine.train.guard import make_guard
from engine.train.heads.early_exit import train_early_exit
from engine.train.heads.head_layer import HeadStage, load_teacher, open_target, teacher_of
from engine.train.own_draft import load_text, train_draft
from engine.train.prompts import write_prompts
from engine.train.trainer import CHECKPOINT, training_folder

EXITS, DRAFT = "early_exit", "draft"
OWN: Final = sorted([*HEAD_TRAINERS, EXITS, DRAFT])
"""The stages that take the user's own target."""


def say(text: str) -> None:
    """Progress goes to stderr."""
    print(text, file=sys.stderr, flush=True)


def make_target(work: Path) -> None:
    """The target, from scratch."""
    model = trainer.new_model(recipe.TARGET_MODEL, recipe.CorpusRecipe().vocabulary, seed=0)
    train_and_write(model, work, "target", recipe.TARGET_TRAINING)


def make_draft(work: Path) -> None:
    """The draft, distilled from the target."""
    model = trainer.new_model(recipe.DRAFT_MODEL, recipe.CorpusRecipe().vocabulary, seed=1)
    train_and_write(model, work, "draft", recipe.DRAFT_TRAINING, teacher="target")


def make_medium(work: Path) -> None:
    """The medium target, grown from the target."""
    model = trainer.grow(LlamaForCausalLM.from_pretrained(work / "target"), recipe.MEDIUM_MODEL)
    train_and_write(model, work, "medium", recipe.MEDIUM_TRAINING, dtype=torch.bfloat16)


def make_medium_draft(work: Path) -> None:
    """The draft of the medium target: three narrowed layers of the target, distilled from it."""
    source = LlamaForCausalLM.from_pretrained(work / "target")
    model = trainer.prune(source, recipe.MEDIUM_DRAFT_LAYERS, recipe.MEDIUM_DRAFT_MODEL.ffn)
    train_and_write(model, work, "medium_draft", recipe.MEDIUM_DRAFT_TRAINING, "medium", torch.bfloat16)


def train_and_write(
    model: PreTrainedModel,
    work: Path,
    name: str,
    plan: recipe.TrainRecipe,
    teacher: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Train on the corpus, and write weights and tokenizer as hub models come."""
    target = None if teacher is None else load_teacher(work / teacher).model
    trainer.train(model, corpus.load(work / "corpus"), plan, training_folder(work / name), say, target)
    model.eval().to(dtype).save_pretrained(work / name, safe_serialization=True)
    PreTrainedTokenizerFast.from_pretrained(work / "corpus" / "tokenizer").save_pretrained(work / name)
    if not name.endswith("draft"):
        write_response_template(work / name)


def make_cards(work: Path) -> None:
    """The cards, measured on the models in `work`."""
    for target, draft in PAIRS:
        if (work / draft.folder).exists():
            write_cards(work, target, draft)
    manifest = json.loads((work / "corpus" / "corpus.json").read_text(encoding="utf-8"))
    for name in TRAININGS:
        if (work / name / "config.json").exists():
            write_head_card(work / name, work / "target", manifest)
    if (work / EXITS / "config.json").exists():
        write_exit_card(work, EXITS)


STAGES: Final[Mapping[str, Callable[[Path], None]]] = {
    "corpus": lambda work: corpus.build(recipe.CorpusRecipe(), work / "corpus"),
    "target": make_target,
    DRAFT: make_draft,
    "medium": make_medium,
    "medium-draft": make_medium_draft,
    "guard": lambda work: make_guard(work / "corpus" / "tokenizer", work / "guard", say),
    "prompts": lambda work: write_prompts(work / "prompts", count=50),
    "cards": make_cards,
}


def train_head(name: str, stage: HeadStage) -> None:
    """A draft head of a target, or the target once more with early layers that can draft."""
    (train_early_exit if name == EXITS else resolve(HEAD_TRAINERS, name, "head"))(stage)


def make_own(name: str, arguments: argparse.Namespace) -> None:
    """A draft or a head of the user's target, or the target with early exits, on the user's text.

    Raises:
        EngineError, OSError, UnicodeDecodeError: the target, the text or the output folder cannot be used.
    """
    out, minutes = arguments.out, arguments.minutes
    used = out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None)
    if used and not (training_folder(out) / CHECKPOINT).is_file():
        raise ModelError(f"{out}: not an empty folder, and no training of ours is beside it; choose another")
    target = open_target(arguments.target)
    text = load_text(arguments.data, target)
    stage = HeadStage(teacher_of(target), text.corpus(), out, say, minutes)
    if name != DRAFT:
        train_head(name, stage)
        return
    for state, numbers in train_draft(replace(stage, minutes=minutes or 10), text, arguments.layers).items():
        say(f"held-out {state}: {trainer.in_words(numbers)}")
    say("in a suite, under models and in an arm:")
    print(f"  draft: {json.dumps(str(out))}\n    proposer: {{kind: draft_model, model: draft, gamma: 4}}")


def read_arguments() -> argparse.Namespace:
    """The command line; ends the process if it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m engine.train", description=__doc__)
    parser.add_argument("stages", nargs="+", choices=sorted({*STAGES, *OWN}))
    parser.add_argument("--work", type=Path, help="work folder of the reference family, kept between runs")
    parser.add_argument("--target", type=Path, help="folder or .gguf file of the user's own target")
    parser.add_argument("--data", type=Path, help='JSONL: "text", "messages", or `audit query texts --format jsonl`')
    parser.add_argument("--out", type=Path, help="folder to write the draft or head to")
    parser.add_argument("--minutes", type=float, help="time to train; 10 for a draft, else the recipe's steps")
    parser.add_argument("--layers", type=int, help="layers of a draft; by default a fifth of the target's")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    arguments = parser.parse_args()
    own = (arguments.target, arguments.data, arguments.out)
    if arguments.work is not None:
        if any((*own, arguments.minutes, arguments.layers)):
            parser.error("--work is for the reference family, the other options for one's own; not both")
    elif not all(own) or len(arguments.stages) > 1 or arguments.stages[0] not in OWN:
        parser.error(f"give --work, or one of {', '.join(OWN)} with --target, --data and --out")
    if arguments.layers is not None and arguments.stages != [DRAFT]:
        parser.error("--layers is for a draft")
    if not 0 < (1 if arguments.minutes is None else arguments.minutes) < float("inf"):
        parser.error(f"--minutes {arguments.minutes}: give a number above 0")
    return arguments


def main() -> None:
    """Run the named stages in order."""
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    for stage in arguments.stages:
        if arguments.work is None:
            try:
                make_own(stage, arguments)
            except (EngineError, OSError, UnicodeDecodeError) as error:
                say(f"python -m engine.train: error: {error}")
                sys.exit(2)
            except KeyboardInterrupt:
                say("interrupted; the same command goes on at the last checkpoint")
                sys.exit(130)
        elif stage in STAGES:
            STAGES[stage](arguments.work)
        else:
            work = arguments.work
            train_head(stage, HeadStage(load_teacher(work / "target"), corpus.load(work / "corpus"), work / stage, say))


if __name__ == "__main__":
    main()
