"""Evaluates one module in a process of its own; `audit.gate.rego` starts this file and nothing imports it.

A module may loop, recurse and print, so the process limits its time and its files before it loads the engine, and what
the module prints goes nowhere: only the answer reaches the file that the caller reads. The caller watches its memory.
"""

import json
import os
import re
import resource
import sys
from typing import Any, Final

MOST_BYTES: Final = 2**24
"""Largest file that the process may write."""
MOST_CHARACTERS: Final = 2**20
"""Longest answer of the engine."""
MESSAGE: Final = re.compile(r"errormsg \d+:([^\n]*)\)")


def main() -> None:
    """Read a module and its input as JSON from stdin, and write the answer to stdout."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    seconds = int(sys.argv[1])
    # the parent's clock is first and says why; this is for a parent that died
    resource.setrlimit(resource.RLIMIT_CPU, (seconds + 1, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given = json.loads(sys.stdin.buffer.read())
    answers.write(json.dumps(evaluated(given["module"], given["input"])))
    answers.flush()


def evaluated(module: str, document: Any) -> dict[str, Any]:
    """The rules of package `specaudit` as `{"value": {...}}`, or `{"error": message}`."""
    # imported after the limits are set
    from regopy import Interpreter, RegoError

    rego = Interpreter()
    rego.strict_built_in_errors = True
    try:
        rego.add_module("policy.rego", module)
    except RegoError as error:
        return {"error": f"it does not compile: {_message(str(error))}"}
    rego.set_input(document)
    try:
        output = rego.query("data.specaudit")
    except (RegoError, ValueError):
        return {"error": "its evaluation failed"}
    text = str(output)
    if not output.ok():
        return {"error": "its evaluation failed"}
    if len(text) > MOST_CHARACTERS:
        return {"error": f"its result is longer than {MOST_CHARACTERS} characters"}
    if text == "undefined":
        return {"error": "it has no package specaudit"}
    return {"value": json.loads(text)["expressions"][0]}


def _message(text: str) -> str:
    lines = MESSAGE.findall(text)
    return "; ".join(dict.fromkeys(line.strip() for line in lines[:3])) or "syntax error"


if __name__ == "__main__":
    main()
