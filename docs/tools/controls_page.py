"""Write docs/controls.md from suites/controls.json.

``python -m docs.tools.controls_page docs/controls.md`` writes the page; a test compares it with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.report.statements.controls import WORDS, Controls, Framework, load_controls
from docs.tools.written_page import page_writer

HEAD: Final = """\
# Controls

Generated from `suites/controls.json` (`audit schema controls`); `make docs` regenerates this page.

`audit controls` prints these tables; `audit controls RUN` puts the results of a run beside each clause, `--format`
chooses table, markdown or json. A row says that records and results of checks are evidence for a clause. Whether a
system meets a clause is for people to decide, with evidence from outside this tool too.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines(load_controls()))


def _lines(controls: Controls) -> Iterator[str]:
    yield HEAD
    for framework in controls.frameworks:
        yield from _framework(framework)
    yield "## Records\n"
    yield "| record | what it is |"
    yield "|---|---|"
    yield from (f"| {name} | {text} |" for name, text in WORDS.items())
    yield "\n## Checks that are evidence for no clause\n"
    unmapped = [f"* `{name}`: {reason}" for name, reason in sorted(controls.unmapped.items())]
    yield "\n".join(unmapped or ["Every registered check is evidence for at least one clause."])
    yield "\n## Limits\n"
    yield (
        "The wording of the clauses is shortened, and comes from the named pages on the named dates: read the clause\n"
        "itself. The mapping is this project's judgement, reviewed by no authority.\n"
    )


def _framework(framework: Framework) -> Iterator[str]:
    yield f"## {framework.title}\n"
    yield f"{framework.note}\n"
    yield "| clause | asks for | records that are evidence for it | checks whose results are evidence for it | read |"
    yield "|---|---|---|---|---|"
    for clause in framework.clauses:
        checks = ", ".join(f"[{name}](checks/{name}.md)" for name in clause.checks) or "-"
        source = f"[{clause.read}]({clause.source})"
        yield f"| {clause.id} | {clause.asks} | {', '.join(clause.records) or '-'} | {checks} | {source} |"
    yield ""


write = page_writer(page)

if __name__ == "__main__":
    write()
