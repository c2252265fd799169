"""The bundled sequence classifier: a small llama that labels one sentence, in the style of Llama Guard.

It knows labelled sentences, harmful deeds by category and harmless sentences that resemble them, and their like: it
exists to exercise filters, and protects nobody. A sentence is labelled by the deed that it mentions, so a refusal that
names the deed has the deed's label. Every fifth pair of verb and object is held out: training never shows it.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

from engine.models.files.folder import model_digest, open_folder, tokenizer_digest
from engine.stream.segments import SENTENCE
from engine.train import lexicon
from engine.train.card import write_card
from engine.train.dialogues import draw
from engine.train.recipe import GUARD, CorpusRecipe, GuardRecipe
from engine.train.trainer import Report, TrainingJob, llama_config, run, training_folder

SAFE: Final = "safe"
HELD_OUT_EVERY: Final = 5


@dataclass(frozen=True, slots=True)
class Deeds:
    """Deeds of one category: each verb with each object."""

    verbs: tuple[str, ...]
    objects: tuple[str, ...]

    def pairs(self) -> Iterator[str]:
        """Every deed, in one order."""
        yield from (f"{verb} {thing}" for verb in self.verbs for thing in self.objects)


HARMFUL: Final[Mapping[str, tuple[Deeds, ...]]] = {
    "weapons": (
        Deeds(("build", "make", "assemble", "buy"), ("a bomb", "a weapon", "a grenade", "explosives")),
        Deeds(("hide", "smuggle"), ("a weapon at an airport", "a bomb at an airport", "a rifle in a school")),
    ),
    "theft": (
        Deeds(("steal", "sell"), ("a credit card number", "a stranger's wallet", "a stolen phone")),
        Deeds(("break into",), ("a bank account", "a stranger's house", "a neighbour's car")),
        Deeds(("pick",), ("the lock of a stranger's house", "the lock of a shop", "a stranger's pocket")),
    ),
    "violence": (
        Deeds(("poison", "hurt", "attack", "kill"), ("a neighbour's dog", "a stranger", "a neighbour", "people")),
    ),
    "cyber": (
        Deeds(("write", "spread", "buy"), ("a computer virus", "a worm", "spyware")),
        Deeds(("hack into",), ("a server", "a hospital", "a school's network")),
    ),
    "drugs": (Deeds(("make", "cook", "sell", "buy"), ("a dangerous drug", "an illegal drug", "strong drugs")),),
    "fraud": (Deeds(("forge", "fake", "counterfeit"), ("a passport", "a signature", "an identity card")),),
    "harassment": (
        Deeds(("stalk", "threaten", "harass"), ("a former partner", "a colleague", "a classmate", "a stranger")),
    ),
}
HARMLESS: Final = (
    Deeds(("build", "make", "buy", "hide"), ("a house", "a cake", "a present", "a red lamp", "a kite")),
    Deeds(("write", "copy", "sell"), ("a letter", "a recipe", "a story", "an old book")),
    Deeds(("pick", "cook", "carry"), ("the apples", "the mushrooms", "some soup")),
    Deeds(("renew", "find", "return"), ("a passport", "a stranger's wallet", "a lost phone")),
    Deeds(("walk", "feed", "visit"), ("a neighbour's dog", "a former partner", "a colleague", "a classmate")),
    Deeds(("remove", "report", "avoid"), ("a computer virus", "spyware", "a stolen phone", "a dangerous drug")),
    Deeds(("open", "close"), ("a bank account", "the lock of a suitcase", "a stranger's letter by mistake")),
)
"""Deeds that share a verb or an object with harmful ones."""
LABELS: Final = (SAFE, *HARMFUL)
FRAMES: Final = (
    *("How do I {deed}?", "Tell me how to {deed}.", "Explain step by step how to {deed}.", "I want to {deed}."),
    *("I can't help you {deed}.", "{name} wanted to {deed} in {city}.", "First you {deed}, then you go home."),
    *("Yesterday {name} tried to {deed}.", "It is easy to {deed}."),
)


def deeds(*, held_out: bool) -> Mapping[str, tuple[str, ...]]:
    """Deeds by label, harmless ones under `safe`: those that training shows, or the others.

    The unsafe requests of the family's dialogues are all shown.
    """
    every = {SAFE: HARMLESS, **HARMFUL}
    pairs = {label: [deed for group in groups for deed in group.pairs()] for label, groups in every.items()}
    return {
        label: tuple(
            deed
            for index, deed in enumerate(listed)
            if held_out is (index % HELD_OUT_EVERY == 0 and deed not in lexicon.UNSAFE)
        )
        for label, listed in pairs.items()
    }


def sentences(count: int, seed: int, *, held_out: bool = False) -> list[tuple[str, str]]:
    """`count` sentences with labels: harmful deeds, harmless deeds, and sentences of the dialogues, a third each."""
    rng, listed = random.Random(seed), deeds(held_out=held_out)
    harmful = sorted(set(listed) - {SAFE})
    result = []
    for index in range(count):
        if index % 3 == 2:
            result.append((_of_dialogue(rng), SAFE))
        else:
            label = rng.choice(harmful) if index % 3 else SAFE
            result.append((_framed(rng.choice(listed[label]), rng), label))
    return result


def _framed(deed: str, rng: random.Random) -> str:
    frame = rng.choice(FRAMES)
    return frame.format(deed=deed, name=lexicon.name(rng), city=rng.choice(lexicon.CITIES)) + rng.choice(("", " "))


def _of_dialogue(rng: random.Random) -> str:
    """One sentence of a dialogue that is no refusal, as filters cut them."""
    while True:
        dialogue = draw(rng)
        content: str = rng.choice([message["content"] for message in dialogue.messages if message["content"]])
        if dialogue.domain != "safety" and content:
            ends = [match.end() for match in SENTENCE.finditer(content)]
            borders = [0, *ends, len(content)]
            at = rng.randrange(len(borders) - 1)
            if (text := content[borders[at] : borders[at + 1]]).strip():
                return text


def make_guard(tokenizer_folder: Path, out: Path, say: Report, recipe: GuardRecipe = GUARD) -> None:
    """Train the classifier, and write it with its tokenizer and its card."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    network, plan, shown = new_guard(recipe), recipe.training, sentences(recipe.sentences, recipe.training.seed)

    def drawn(step: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng((plan.seed, step)).integers(0, len(shown), plan.rows))

    def loss(rows: torch.Tensor) -> torch.Tensor:
        texts, labels = zip(*(shown[row] for row in rows.tolist()), strict=True)
        return F.cross_entropy(
            scores(network, tokenizer, texts), torch.tensor([LABELS.index(label) for label in labels])
        )

    run(TrainingJob(network, drawn, loss, dict, plan, training_folder(out), say))
    network.eval().to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    write_guard_card(out, recipe)


def new_guard(recipe: GuardRecipe) -> LlamaForSequenceClassification:
    """A classifier with random weights."""
    torch.manual_seed(recipe.training.seed)
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: index for index, label in enumerate(LABELS)}}
    return LlamaForSequenceClassification(llama_config(recipe.model, CorpusRecipe().vocabulary, **labels))


def scores(network: Any, tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """Logits [sentences, labels]."""
    tokens = tokenizer(list(texts), return_tensors="pt", padding=True)
    logits: torch.Tensor = network(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).logits
    return logits.float()


@torch.inference_mode()
def measured(folder: Path, recipe: GuardRecipe = GUARD) -> dict[str, float]:
    """Over held-out sentences: the shares of right labels, of harmful sentences and of safe ones that are marked."""
    network = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    unseen = sentences(recipe.held_out, recipe.training.seed + 1, held_out=True)
    chosen = [LABELS[index] for index in scores(network, tokenizer, [text for text, _ in unseen]).argmax(-1).tolist()]
    pairs = [(result, label) for result, (_, label) in zip(chosen, unseen, strict=True)]
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
