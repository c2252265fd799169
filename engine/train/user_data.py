"""A user's own target and text, as the trainers want them.

Text is a file of one JSON object per line: {"text": ...}; {"messages": [...]}, which goes through the target's chat
template; or a recorded request, as `audit query texts --format jsonl` writes it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFolder
from engine.models.loading import load_tokenizer
from engine.train.corpus import Corpus

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
