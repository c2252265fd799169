"""The tables of features in docs/backends/vllm.md, from the results of the suites of vLLM's features.

``python -m docs.tools.vllm_features_page RESULTS...`` reads results that `audit run --results` wrote, keeps what
they say of each arm in docs/backends/vllm-features.json, and writes the tables between the marks of the page. Arms are
named METHOD-tTEMPERATURE-FEATURE. A cell says what an arm's checks found, never what was expected of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "backends" / "vllm.md"
NUMBERS: Final = ROOT / "docs" / "backends" / "vllm-features.json"
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "features": ("features",),
    "features-engine": ("features-engine", "features-engine-greedy"),
    "adapters": ("adapters",),
}
"""The suites of each table of features by methods."""
LISTED: Final = ("adapters-stock",)
"""Suites whose arms are no such cells: one line for each arm."""
SUITES: Final = (*(suite for suites in TABLES.values() for suite in suites), *LISTED)
BEGIN: Final = "<!-- features -->"
END: Final = "<!-- end of features -->"
METHODS: Final = ("ngram", "draft", "drawn", "eagle")
NO_SEED: Final = "no seed to send"
"""A greedy request has none, so that there is nothing to leave out or to repeat."""
NO_EFFECT: Final = "no effect"
"""The parameter changes nothing at temperature 0."""
NOT_AT_0: Final[Mapping[str, str]] = {"seed": NO_SEED, "unseeded": NO_SEED, "min-p": NO_EFFECT}
REFUSED: Final = re.compile(r"all 0 requests were answered.* refused, which the suite allows: (.*)$")


def arms_of(suite: str) -> list[str]:
    """The names of a suite's arms."""
    document = yaml.safe_load((ROOT / "suites" / "vllm" / f"{suite}.yaml").read_text(encoding="utf-8"))
    return [arm["name"] for arm in document["arms"]]


def cells(results: Mapping[str, Any]) -> dict[str, str]:
    """What the results say of every arm."""
    checks: dict[str, list[Mapping[str, Any]]] = {}
    for check in results["checks"]:
        checks.setdefault(check["arm"], []).append(check)
    return {arm: cell(found) for arm, found in checks.items()}


def cell(checks: Iterable[Mapping[str, Any]]) -> str:
    """One arm: refused in the engine's words, the checks that found something, or certified."""
    found = list(checks)
    faults = sorted(each["check"] for each in found if each["verdict"] == "fault")
    if faults:
        return f"finding: {', '.join(faults)}"
    refusals = [match[1] for each in found if (match := REFUSED.search(each["summary"]))]
    if refusals:
        return f"refused: {refusals[0]}"
    undecided = sorted(f"{each['check']} {each['verdict']}" for each in found if each["verdict"] != "certified")
    return f"undecided: {', '.join(undecided)}" if undecided else "certified"


def table(name: str, numbers: Mapping[str, Mapping[str, str]]) -> str:
    """Features by methods and temperatures; an arm that the suites lack is untried, unless the page says why."""
    found = {arm: text for suite in TABLES[name] for arm, text in numbers[suite].items()}
    arms = [arm for suite in TABLES[name] for arm in arms_of(suite)]
    features = list(dict.fromkeys(re.sub(r"^[a-z]+-t[01]-", "", arm) for arm in arms))
    heads = [(method, t) for method in METHODS for t in (0, 1)]
    lines = ["| feature | " + " | ".join(f"{method}, T={t}" for method, t in heads) + " |", "|---" * 9 + "|"]
    notes: dict[str, int] = {}
    for feature in features:
        row = [_short(found.get(f"{method}-t{t}-{feature}", _absent(feature, t)), notes) for method, t in heads]
        lines.append(f"| {feature} | " + " | ".join(row) + " |")
    words = [f"{number}. {text}" for text, number in notes.items()]
    return "\n".join([*lines, *(["", "Refusals, in vLLM's words:", "", *words] if words else [])])


def _absent(feature: str, t: int) -> str:
    return NOT_AT_0.get(feature, "untried") if t == 0 else "untried"


def lines_of(suite: str, numbers: Mapping[str, Mapping[str, str]]) -> str:
    """One line for each arm of a suite."""
    rows = (f"| `{arm}` | {numbers[suite].get(arm, 'untried')} |" for arm in arms_of(suite))
    return "\n".join(["| arm | what its checks say |", "|---|---|", *rows])


def _short(text: str, notes: dict[str, int]) -> str:
    """A refusal's words stand under the table."""
    if not text.startswith("refused: "):
        return text
    number = notes.setdefault(text.removeprefix("refused: "), len(notes) + 1)
    return f"refused ({number})"


def block(numbers: Mapping[str, Mapping[str, str]]) -> str:
    """All tables, between the marks."""
    tables = (_part(name, suites, table(name, numbers)) for name, suites in TABLES.items())
    lists = (_part(suite, (suite,), lines_of(suite, numbers)) for suite in LISTED)
    return "\n\n".join([BEGIN, *tables, *lists, END])


def _part(name: str, suites: Iterable[str], rows: str) -> str:
    return f"### {name}\n\n{', '.join(f'`suites/vllm/{suite}.yaml`' for suite in suites)}\n\n{rows}"


def written(page: str, numbers: Mapping[str, Mapping[str, str]]) -> str:
    """The page with these tables."""
    before, _, rest = page.partition(BEGIN)
    return before + block(numbers) + rest.partition(END)[2]


def main(paths: Iterable[str]) -> None:
    """Keep the results' cells and write the page; suites without new results keep theirs."""
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.is_file() else {each: {} for each in SUITES}
    for path in paths:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
        numbers[results["run"]["suite_name"].removeprefix("vllm-")] = cells(results)
    NUMBERS.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), numbers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
