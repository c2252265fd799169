"""A process that draws charts for a server: `python -m audit.view.drawing_process`.

It reads a chart on each line of its input and writes the drawing, or why there is none, on a line of its output. It
ends with its input, so it outlives no server.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

import vl_convert

from audit.report.html.charts import Chart, svg


def main() -> None:
    """Draw until the input ends."""
    # whatever a library prints must not stand between the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _write(answers, {"ready": vl_convert.__name__})
    for line in sys.stdin:
        _write(answers, _drawn(line))


def _drawn(line: str) -> Mapping[str, str]:
    try:
        return {"svg": svg(Chart(**json.loads(line)))}
    except Exception as error:  # whatever the library raises is an answer, and the next chart may be drawn
        return {"failed": f"{type(error).__name__}: {error}"}


def _write(answers: TextIO, answer: Mapping[str, str]) -> None:
    answers.write(f"{json.dumps(answer)}\n")
    answers.flush()


if __name__ == "__main__":
    main()
