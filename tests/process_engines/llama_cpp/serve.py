"""`python -m tests.process_engines.llama_cpp.serve TARGET [DRAFT]`: serves GGUF files until stdin ends.

Prints its address. With a draft, it drafts four tokens at a time.
"""

from __future__ import annotations

import sys

import xllamacpp

from engine.backends.llama_cpp.driver import parameters


def main(target: str, draft: str | None = None) -> None:
    """Serve two slots."""
    job = {"target": target, "draft": draft, "rows": 2, "context": 1024, "threads": 1, "cache_prompt": True}
    way = {"way": "none", "speculative": {}} if draft is None else {"way": "draft-simple", "speculative": {"n_max": 4}}
    server = xllamacpp.Server(parameters(xllamacpp, {**job, **way}))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
