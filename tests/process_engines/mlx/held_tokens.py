"""`python held_tokens.py TARGET DRAFT IDS`: tokens that a prompt cache lacks after answers of 1 to 8 tokens, as JSON.

Runs in the environment of mlx, with nothing of this project.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def lacking(target: object, draft: object, prompt: list[int], most: int) -> dict[str, object]:
    """Tokens of prompt and answer that the target's cache lacks, after plain answers and after drafted ones."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    library, ids = importlib.import_module("mlx_lm.generate"), mx.array(prompt)
    found: dict[str, object] = {"plain": [], "draft": [], "from_draft": []}
    cache = make_prompt_cache(target)
    tokens = list(library.generate_step(ids, target, max_tokens=most, prompt_cache=cache))
    found["plain"] = [len(prompt) + len(tokens) - cache[0].offset]
    for count in range(1, most + 1):
        cache = make_prompt_cache(target) + make_prompt_cache(draft)
        steps = library.speculative_generate_step(
            ids, target, draft, num_draft_tokens=4, max_tokens=count, prompt_cache=cache
        )
        words = [drafted for _token, _row, drafted in steps]
        found["draft"].append(len(prompt) + count - cache[0].offset)
        found["from_draft"].append(words[-1])
    return found


def main() -> None:
    """Print what the caches lack."""
    from mlx_lm.utils import load_model

    target, draft = (load_model(Path(folder))[0] for folder in sys.argv[1:3])
    print(json.dumps(lacking(target, draft, [int(token) for token in sys.argv[3].split(",")], 8)))


if __name__ == "__main__":
    main()
