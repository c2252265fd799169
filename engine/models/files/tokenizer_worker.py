"""Builds a tokenizer in a process of its own; `tokenizer_trial` starts this file, and nothing imports it."""

import json
import sys

from tokenizers import Tokenizer

RUNS = ("a", " ", "0", "\n", "!", "\u00e9", "\u4e2d", "\U0001f600", "\u0301", "aA", "a b", "1,")
TEXTS = ("", "The quick brown fox, 3.5 times.", *(f"{run * 400}b" for run in RUNS), *(f"b{run * 400}" for run in RUNS))
"""Long runs of one kind of characters, which an expression with nested repetitions reads in exponential time."""


def refusal(text: str) -> str | None:
    """Why the tokenizer is refused; None if it reads all texts or says why not, as one without a piece for a letter."""
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception:  # whoever builds it next tells the reason
        return None
    for sample in TEXTS:
        try:
            tokenizer.decode(tokenizer.encode(sample).ids)
        except Exception:
            continue
        except BaseException as error:  # a panic of the library
            return " ".join(f"fails on a short text: {error}".split())[:200]
    return None


if __name__ == "__main__":
    json.dump({"refusal": refusal(json.load(sys.stdin)["text"])}, sys.stdout)
