"""Write the golden transcripts anew, after the bundled weights were changed on purpose.

`python -m tests.engine.golden.write [MODEL ...]`; by default every bundled model that has transcripts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch

from engine.models.files.folder import ModelFolder, model_digest
from engine.models.loading import load_tokenizer
from engine.sampling.rng import stream_of
from tests.engine.golden.transcripts import HOME, Arm, Golden, Transcript, bundled, decoded, exact_model, write

MODELS = ("target", "draft")
DOMAINS = ("tools", "json", "copy", "chat", "code")
LENGTH = 40
TEMPERATURE = 0.9
PROMPTS = HOME.parents[2] / "suites" / "prompts"


def encoded(folder: ModelFolder, domain: str) -> tuple[int, ...]:
    """The tokens of a domain's first packaged prompt."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    row = json.loads((PROMPTS / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()[0])
    if "prompt" in row:
        return tuple(tokenizer(row["prompt"])["input_ids"])
    tools = {"tools": row["tools"]} if "tools" in row else {}
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True, **tools)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def wanted(folder: ModelFolder) -> list[Transcript]:
    """The requests; tokens and digests are still empty places."""
    blank = Transcript("", (), 0.0, 0, 0, (0,) * LENGTH, ())
    found = []
    for seed, domain in enumerate(DOMAINS):
        prompt = encoded(folder, domain)
        for kind, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE)):
            name = f"{domain}-{kind}"
            found.append(
                replace(blank, id=name, prompt=prompt, temperature=temperature, seed=seed, stream=stream_of(name))
            )
    return found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or MODELS:
        folder = bundled(name)
        golden = decoded(Arm(exact_model(folder)), wanted(folder))
        write(name, Golden(f"bundled:{name}", model_digest(folder.files), golden))
        print(f"{name}: {len(golden)} transcripts", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
