"""Compiles grammars in a process of its own; `audit.serve.grammar_trials` starts this file and nothing imports it."""

import json
import os
import resource
import sys
from typing import Any


def refusal(documents: list[dict[str, Any]]) -> str | None:
    """Why one of the grammars is refused; None if all compile."""
    # imported after the limits are set
    from engine.constraints.compiled import check
    from engine.core.errors import InvalidRequest
    from engine.core.structured import constraint_of

    try:
        for document in documents:
            check(constraint_of(document))
    except InvalidRequest as error:
        return str(error)
    return None


def main() -> None:
    """Read grammars as JSON from stdin, and write the refusal to stdout."""
    seconds = int(sys.argv[1])
    # the parent's clock is first and says why; this is for a parent that died
    resource.setrlimit(resource.RLIMIT_CPU, (seconds + 1, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        json.dump({"refusal": refusal(json.load(sys.stdin)["grammars"])}, answers)


if __name__ == "__main__":
    main()
