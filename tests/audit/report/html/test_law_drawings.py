"""The law section draws what a real run's record and stored check say, found here without the code that draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import html5lib
import numpy as np
import pytest

from audit.evidence.decisions import decisions
from audit.report.html.registry import source_of
from audit.report.html.render import render_page
from audit.stats.anytime.alternatives import NAMES, WHOLE_RUN
from audit.store import Store
from tests.audit.invoke import invoke

pytestmark = pytest.mark.slow
HTML = "{http://www.w3.org/1999/xhtml}"
PROMPTS = Path(__file__).parents[4] / "suites/prompts"
SUITE = f"""
version: 1
name: drawn
seed: 7
models: {{target: "bundled:target", draft: "bundled:draft"}}
workloads:
  - {{name: chat, prompts: {PROMPTS / "chat.jsonl"}, limit: 14}}
  - {{name: code, prompts: {PROMPTS / "code.jsonl"}, limit: 14}}
sampling: {{max_new_tokens: 24}}
arms:
  - name: drawn
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: [law]
"""


@dataclass(frozen=True)
class Drawn:
    """The page of a run, its arm's decisions, and the details of its check."""

    page: str
    made: list
    details: dict


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("law")
    (folder / "suite.yaml").write_text(SUITE)
    store = folder / "audit.db"
    done = invoke("run", str(folder / "suite.yaml"), "--store", str(store))
    assert done.exit_code in (0, 3), done.output  # 3: situations that few tokens seldom meet
    with Store.open(f"sqlite:///{store}", create=False, read_only=True) as opened:
        source = source_of(opened, opened.resolve("latest"))
        check = next(one for one in source.results.checks if one.check == "law")
        made = [decisions(request) for request in opened.load_arm(source.run, "drawn").keeping().requests]
        return Drawn(render_page(source), made, dict(check.details))


def rows_under(page, words):
    for figure in html5lib.parse(page).iter(f"{HTML}figure"):
        if words in "".join(figure.find(f".//{HTML}caption").itertext()):
            rows = [["".join(cell.itertext()) for cell in row.iter(f"{HTML}td")] for row in figure.iter(f"{HTML}tr")]
            return [[float(cell) for cell in row] for row in rows[1:]]
    raise LookupError(words)


def possible(made):
    """[E] the ends of the interval from which each token's transform is drawn: the mass above it, with and without."""
    for one in made:
        for p, token in zip(one.p, one.token, strict=True):
            above = math.fsum(p[p > p[token]])
            ties = math.fsum(p[p == p[token]])
            yield above, above + ties


def test_each_bar_can_be_drawn_from_the_tokens_of_the_record(drawn):
    ends = np.array(list(possible(drawn.made)))
    bars = rows_under(drawn.page, "histogram is flat")
    assert sum(bar[2] for bar in bars) == len(ends)
    for low, high, count, _expected in bars:
        inside = np.sum((ends[:, 0] >= low + 1e-9) & (ends[:, 1] <= high - 1e-9))
        reaching = np.sum((ends[:, 0] < high + 1e-9) & (ends[:, 1] > low - 1e-9))
        assert inside <= count <= reaching, (low, count)
    # the intervals say something: no bar could hold all tokens, and one holds some for certain
    assert max(np.sum((ends[:, 0] < bar[1]) & (ends[:, 1] > bar[0])) for bar in bars) < len(ends)


def test_the_evidence_ends_where_the_stored_check_ended(drawn):
    """share = weight * e / average, so any named fault of the stored check gives the average."""
    whole = sum(":" not in name for name in NAMES)
    weights = {name: WHOLE_RUN / whole if ":" not in name else (1 - WHOLE_RUN) / (len(NAMES) - whole) for name in NAMES}
    rows = rows_under(drawn.page, "e-process")
    for one in drawn.details["alternatives"]:
        final = one["log_e"] + math.log(weights[one["name"]]) - math.log(one["share"])
        assert rows[-1][1] == pytest.approx(final, abs=1e-3)
    assert rows[-1][0] == sum(len(one.token) for one in drawn.made)
    mixture = next(one for one in drawn.details["components"] if one["name"].startswith("named alternatives"))
    assert max(row[1] for row in rows) <= mixture["statistic"] + 1e-3
