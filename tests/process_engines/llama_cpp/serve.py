"""`python -m tests.process_engines.llama_cpp.serve TARGET [DRAFT]`: serves GGUF files until stdin ends.

Prints its address. With a draft, it drafts four tokens at a time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.backends.llama_cpp.driver import parameters
from tests.support.engine_suites import ROOT


@contextlib.contextmanager
def serving(folder: Path, *files: Path) -> Iterator[str]:
    """The address of a server of a target and a draft in a process of its own; it ends with the block."""
    command = [sys.executable, "-m", "tests.process_engines.llama_cpp.serve", *map(str, files)]
    log = folder / f"{len(files)}.log"
    with log.open("wb") as told:
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        address = server.stdout.readline().decode().strip()
        assert address.startswith("http://127.0.0.1:"), log.read_text()[-2000:]
        yield address
    finally:
        server.kill()
        server.communicate()


def main(target: str, draft: str | None = None) -> None:
    """Serve two slots."""
    # imported here, because only the environment of the engine has it
    import xllamacpp

    job = {"target": target, "draft": draft, "rows": 2, "context": 1024, "threads": 1, "cache_prompt": True}
    way = {"way": "none", "speculative": {}} if draft is None else {"way": "draft-simple", "speculative": {"n_max": 4}}
    server = xllamacpp.Server(parameters(xllamacpp, {**job, **way}))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
