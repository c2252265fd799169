"""Write docs/how-to/ask-the-store.md: questions in plain SQL with their answers on a checked-in store.

``python -m docs.tools.ask_page docs/how-to/ask-the-store.md`` writes the page; a test compares it.
"""

from __future__ import annotations

import lzma
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from audit.report.requests.pieces import pieces_of
from audit.store import Store, migrate
from docs.tools.written_page import page_writer

STORE: Final = Path(__file__).parents[2] / "tests" / "audit" / "store" / "format_1" / "audit.db.xz"
HEAD: Final = """\
# Ask the store

Ten questions in plain SQL. They run as they stand in `sqlite3 -header audit.db`, and in `psql` on PostgreSQL; with
`audit query --sql` too. [The data dictionary](../data-dictionary.md) describes every column. The answers are those of a
small store with one run; add `WHERE run = '01...'` in a store with several. `make docs` regenerates this page.
"""
QUESTIONS: Final = {
    "Which runs speculate, with what, under which rule?": """
SELECT suite, status, speculation, proposers, gammas, rules, lossless, n_drafted, n_accepted FROM v_run""",
    "What does each arm promise?": """
SELECT arm, proposer, gamma, rule, expected_equivalence FROM v_arm WHERE speculation ORDER BY arm""",
    "How many drafted tokens are accepted, by domain?": """
SELECT arm, domain, n_drafted, n_accepted, ROUND(CAST(draft_acceptance_rate AS NUMERIC), 3) AS rate
FROM v_acceptance WHERE n_drafted > 0 ORDER BY arm, domain""",
    "Which drafted tokens were rejected in a domain, at which probability?": """
SELECT arm, case_id, position, token, piece, ROUND(CAST(p AS NUMERIC), 4) AS p, ROUND(CAST(q AS NUMERIC), 4) AS q
FROM v_token WHERE role = 'rejected' AND domain = 'chat' AND p > 0
ORDER BY p DESC, arm, case_id, position LIMIT 8""",
    "Was a token rejected that the target finds likelier than the draft? Exact rules reject none": """
SELECT arm, case_id, sample, position, token, ROUND(CAST(p AS NUMERIC), 4) AS p, ROUND(CAST(q AS NUMERIC), 4) AS q
FROM v_token WHERE role = 'rejected' AND p > q ORDER BY arm, case_id, sample, position LIMIT 5""",
    "How far into a draft does acceptance reach?": """
SELECT arm, draft_position, n_drafted, n_accepted, ROUND(CAST(draft_acceptance_rate AS NUMERIC), 3) AS rate
FROM v_acceptance_position ORDER BY arm, draft_position LIMIT 8""",
    "Does acceptance depend on the length of the context?": """
SELECT arm, context_from, n_steps, n_drafted, n_accepted
FROM v_acceptance_context WHERE n_drafted > 0 ORDER BY arm, context_from LIMIT 8""",
    "What happened in the first steps of one request?": """
SELECT step, position, token, piece, role, ROUND(CAST(p AS NUMERIC), 4) AS p FROM v_token
WHERE arm = 'greedy' AND sample = 0 AND case_id = (SELECT MIN(case_id) FROM v_request WHERE arm = 'greedy')
ORDER BY step, place LIMIT 8""",
    "Which roles do the emitted tokens have?": """
SELECT arm, role, COUNT(*) AS tokens FROM v_token
WHERE drafted_by IS NOT NULL OR role IN ('recovered', 'bonus') GROUP BY arm, role ORDER BY arm, role LIMIT 10""",
    "Which verdicts are not certified?": """
SELECT arm, check_name, verdict FROM v_check
WHERE verdict <> 'certified' ORDER BY arm, check_name LIMIT 8""",
}


def page() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.db"
        path.write_bytes(lzma.decompress(STORE.read_bytes()))
        migrate.upgrade(str(path))
        with Store.open(str(path), create=False) as store:
            run = store.resolve("latest")
            text = pieces_of(store.load_run(run)).text
            if text is not None:
                store.add_pieces(run, text)
        with sqlite3.connect(path) as connection:
            return "\n".join([HEAD, *(_section(connection, *each) for each in QUESTIONS.items())])


def _section(connection: sqlite3.Connection, question: str, sql: str) -> str:
    found = connection.execute(sql)
    names = [each[0] for each in found.description]
    rows = [[_cell(value) for value in row] for row in found]
    answer = "\n".join("|".join(row).rstrip() for row in (names, *rows))
    return f"## {question}\n\n```sql\n{sql.strip()};\n```\n\n```text\n{answer}\n```\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return repr(value)[1:-1] if isinstance(value, str) else str(value)


write = page_writer(page)

if __name__ == "__main__":
    write()
