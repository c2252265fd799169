"""The tables of docs/evidence.md are those of the figures beside it."""

import json

from engine.core.types import RecordLevel
from tests.bench.levels import RESULT, Arm, arm_of, counted, table
from tests.bench.page import PAGE
from tests.bench.vocabulary import SIZES, sizes_table

FULL, TOPK = RecordLevel.FULL, RecordLevel.TOPK


def test_the_page_has_the_tables_of_the_figures():
    page = PAGE.read_text()
    for name, text in (
        ("levels", table(json.loads(RESULT.read_text()))),
        ("sizes", sizes_table(json.loads(SIZES.read_text()))),
    ):
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- end of {name} -->" in page


def test_only_seeds_that_ran_at_both_levels_count():
    arms = [
        *(Arm("a", 0, FULL, ("replay", "law")), Arm("a", 0, TOPK, ("replay",))),
        *(Arm("a", 1, FULL, ("replay",)), Arm("b", 0, FULL, None), Arm("b", 0, TOPK, None)),
        *(Arm("c", 0, FULL, ()), Arm("c", 0, TOPK, ())),
    ]
    assert [arm_of(arm.line()) for arm in arms] == arms
    assert counted(arms) == {"a": {"replay": [1, 1], "law": [1, 0]}}
    text = table({"tokens": 64, "seeds": 1, "faults": 2, "caught": counted(arms)})
    assert "| `a` | law | 1 | 0 | replay |" in text
    assert "| [replay](checks/replay.md) | 1 | 1 | 1 | 1 |" in text
