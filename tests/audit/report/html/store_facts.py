"""The numbers of a run, computed by plain SQL and by counting its stored steps, without the code that pages use."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.record.trace import Trace, decode

REQUESTS = """
SELECT arm.name AS arm, request.*, request_steps.steps FROM request JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id JOIN request_steps ON request_steps.request_id = request.id
WHERE run.ulid = ? ORDER BY request.id
"""
CHECKS = """
SELECT arm.name AS arm, check_result.*, finding.findings FROM check_result JOIN arm ON arm.id = check_result.arm_id
JOIN run ON run.id = check_result.run_id LEFT JOIN finding ON finding.check_result_id = check_result.id
WHERE run.ulid = ? ORDER BY check_result.id
"""
Rows = list[list[Any]]


def shown(value: Any) -> str:
    """A number as pages write it."""
    if value is None:
        return "\u2013"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and numbers of a JSON value."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, value


@dataclass(frozen=True)
class StoreFacts:
    """The rows of one run of an SQLite store. `spec` is compared with `base`."""

    path: str
    run: str
    spec: str = "spec"
    base: str = "base"

    def rows(self, sql: str, *given: Any) -> list[dict[str, Any]]:
        """Rows by the names of their columns."""
        connection = sqlite3.connect(self.path)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(sql, given)]
        finally:
            connection.close()

    @cached_property
    def requests(self) -> list[dict[str, Any]]:
        """Every request in the order in which it finished."""
        return self.rows(REQUESTS, self.run)

    @cached_property
    def checks(self) -> list[dict[str, Any]]:
        """The results with their findings and details."""
        rows = self.rows(CHECKS, self.run)
        valid = {(row["arm"], row["name"]): row for row in rows}.values()
        return [
            {**row, "details": json.loads(row["details"]), "findings": json.loads(row["findings"] or "[]")}
            for row in valid
        ]

    def check(self, name: str) -> dict[str, Any]:
        """The result of a check on `spec`."""
        return next(row for row in self.checks if (row["arm"], row["name"]) == (self.spec, name))

    def of(self, arm: str, column: str) -> list[int]:
        """A column of an arm's requests."""
        return [row[column] for row in self.requests if row["arm"] == arm]

    def steps(self, arm: str) -> list[list[int]]:
        """Position, drafted, accepted, emitted, and both times of every step of an arm."""
        return [step for row in self.requests if row["arm"] == arm for step in json.loads(row["steps"])]

    @cached_property
    def drafts(self) -> list[list[int]]:
        """The steps of `spec` that drafted."""
        return [step for step in self.steps(self.spec) if step[1]]

    def keyed(self) -> dict[str, Any]:
        """The numbers that pages name, by their keys."""
        parts = (self._checks, self._arms, self._acceptance, self._estimates, self._times, self._divergences)
        return {key: value for part in parts for key, value in part().items()}

    def _checks(self) -> dict[str, Any]:
        (run,) = self.rows("SELECT tokens FROM run WHERE ulid = ?", self.run)
        assert run["tokens"] == sum(row["n_output"] for row in self.requests)
        words = [row["verdict"] for row in self.checks]
        known = {"run:tokens": run["tokens"], f"run:{self.run}:tokens": run["tokens"]}
        known |= {f"count:{word}": words.count(word) for word in ("certified", "fault", "inconclusive", "not_run")}
        for row in self.checks:
            place = f"{row['arm']}:{row['name']}"
            known |= {f"check:{place}:{column}": row[column] for column in ("n", "effect", "bound", "margin")}
            known[f"check:{place}:findings"] = len(row["findings"])
            known |= {f"detail:{place}:{path}": value for path, value in leaves(row["details"])}
            known |= {f"finding:{place}:{index}:step": one["step"] for index, one in enumerate(row["findings"])}
        return known

    def _arms(self) -> dict[str, Any]:
        known = {}
        for arm in {row["arm"] for row in self.requests}:
            known[f"arm:{arm}:requests"] = len(self.of(arm, "id"))
            for name in ("prompt", "output", "steps", "drafted", "accepted"):
                known[f"arm:{arm}:{name}"] = sum(self.of(arm, f"n_{name}"))
            known[f"drawn:{arm}:tokens"] = sum(self.of(arm, "n_output"))
        for row in self.requests:
            place = f"request:{row['id']}:"
            known |= {f"{place}n_{name}": row[f"n_{name}"] for name in ("prompt", "output", "steps")}
            known |= {f"{place}n_{name}": row[f"n_{name}"] for name in ("drafted", "accepted")}
            known[f"{place}latency_ms"] = row["latency_us"] / 1000
        return known

    def _acceptance(self) -> dict[str, Any]:
        drafted, accepted = (sum(step[place] for step in self.drafts) for place in (1, 2))
        reached = sum(min(step[2] + 1, step[1]) for step in self.drafts)
        alpha, gamma = accepted / reached, 4
        rate = accepted / drafted
        per_step = sum(self.of(self.spec, "n_output")) / len(self.steps(self.spec))
        names = {"drafted": drafted, "accepted": accepted, "tokens_per_step": per_step}
        return {
            **{f"acceptance:{self.spec}:{name}": value for name, value in names.items()},
            f"acceptance:{self.spec}:rate": rate,
            f"acceptance:{self.spec}:alpha": alpha,
            f"acceptance:{self.spec}:acceptance_length": 1 + accepted / len(self.drafts),
            f"acceptance:{self.spec}:model_length": sum(alpha**power for power in range(gamma + 1)),
            **{f"run:{self.run}:{name}": value for name, value in names.items()},
            f"run:{self.run}:acceptance": rate,
        }

    def _estimates(self) -> dict[str, Any]:
        own = [row for row in self.requests if row["arm"] == self.spec and row["n_drafted"]]
        drafting = [sum(step[1] > 0 for step in json.loads(row["steps"])) for row in own]
        drafted, accepted = (sum(row[name] for row in own) for name in ("n_drafted", "n_accepted"))
        rates = [row["n_accepted"] / row["n_drafted"] for row in own]
        lengths = [1 + row["n_accepted"] / steps for row, steps in zip(own, drafting, strict=True)]
        values = {
            "token_weighted_rate": accepted / drafted,
            "request_weighted_rate": sum(rates) / len(own),
            "token_weighted_length": 1 + accepted / sum(drafting),
            "request_weighted_length": sum(lengths) / len(own),
        }
        known = {f"estimate:{self.spec}:{name}:value": value for name, value in values.items()}
        return known | {f"estimate:{self.spec}:{name}:requests": len(own) for name in values}

    def _times(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        speed = {}
        for arm in (self.spec, self.base):
            times, output = sorted(self.of(arm, "latency_us")), sum(self.of(arm, "n_output"))
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)):
                known[f"latency:{arm}:{name}"] = times[math.ceil(share * len(times)) - 1] / 1e6
            known |= {f"latency:{arm}:requests": len(times), f"latency:{arm}:per_token": sum(times) / output / 1e6}
            speed[arm] = output / sum(times)
        per_step = {arm: sum(one[4] + one[5] for one in self.steps(arm)) / len(self.steps(arm)) for arm in speed}
        emitted = sum(one[3] for one in self.steps(self.spec)) / len(self.steps(self.spec))
        known[f"speed:{self.spec}:measured"] = speed[self.spec] / speed[self.base]
        known[f"speed:{self.spec}:modelled"] = emitted * per_step[self.base] / per_step[self.spec]
        return known

    def _divergences(self) -> dict[str, Any]:
        details, place = self.check("greedy_equality")["details"], f"divergences:{self.spec}:"
        theirs = {(row["case_id"], row["sample"]) for row in self.requests if row["arm"] == self.base}
        pairs = sum((row["case_id"], row["sample"]) in theirs for row in self.requests if row["arm"] == self.spec)
        known = {f"{place}pairs": pairs, f"{place}tokens": details["tokens_compared"]}
        known |= {f"{place}{kind}": count for kind, count in details["divergences"].items()}
        return known | {f"{place}{name}": details[name] for name in ("noise_bound", "noise_positions")}

    def charts(self) -> Mapping[str, Rows]:
        """The numbers under each drawing, by the beginning of its caption."""
        leads, bound = (self.check("greedy_equality")["details"][name] for name in ("leads", "noise_bound"))
        return {
            "Unconditional:": self._by_place(),
            "Share of the steps": self._lengths(),
            "Accepted of drafted tokens, pooled": self._domains(),
            "Accepted of drafted tokens over spans": self._spans(),
            "Dot: share": self._theory(),
            "Each tick": [[number, lead, bound] for number, lead in enumerate(leads, start=1)],
            "Each line runs": self._bounds(),
            "Accepted of drafted tokens of all": self._run_line(),
            "Valid results of each run": self._run_verdicts(),
        }

    def _by_place(self) -> Rows:
        rows: Rows = []
        for place in range(1, max(step[1] for step in self.drafts) + 1):
            kept = sum(step[2] >= place for step in self.drafts)
            reached = sum(step[2] >= place - 1 and step[1] >= place for step in self.drafts)
            for kind, of in (("unconditional", len(self.drafts)), ("conditional", reached)):
                rows.append([self.spec, place, kind, kept / of, kept, of])
        return rows

    def _lengths(self) -> Rows:
        kept = [step[2] for step in self.drafts]
        return [[self.spec, n, kept.count(n), kept.count(n) / len(kept)] for n in range(max(kept) + 1)]

    def _domains(self) -> Rows:
        own = [row for row in self.requests if row["arm"] == self.spec]
        rows: Rows = []
        for domain in sorted({row["domain"] for row in own}):
            accepted, drafted = (
                sum(row[name] for row in own if row["domain"] == domain) for name in ("n_accepted", "n_drafted")
            )
            rows.append([self.spec, domain, accepted / drafted, accepted, drafted])
        return rows

    def _spans(self) -> Rows:
        """A run of fewer requests than points has one request in each."""
        own = [row for row in self.requests if row["arm"] == self.spec]
        return [
            [self.spec, place, place, row["n_accepted"] / row["n_drafted"], row["n_accepted"], row["n_drafted"]]
            for place, row in enumerate(own, start=1)
            if row["n_drafted"]
        ]

    def _theory(self) -> Rows:
        return [
            [
                *(self.spec, one["name"], one["n"], one["observed"], one["expected"]),
                *(one["observed"] / one["n"], one["expected"] / one["n"], one["p_adjusted"]),
            ]
            for one in self.check("acceptance_theory")["details"]["strata"]
        ]

    def _bounds(self) -> Rows:
        return [
            [
                f"{row['arm']}: {row['name']}",
                row["effect"] / row["margin"],
                row["bound"] / row["margin"],
                row["verdict"],
            ]
            for row in sorted(self.checks, key=lambda row: row["name"])
            if row["margin"] and row["effect"] is not None
        ]

    def _run_line(self) -> Rows:
        accepted, drafted = (sum(self.of(self.spec, name)) for name in ("n_accepted", "n_drafted"))
        (run,) = self.rows("SELECT * FROM run WHERE ulid = ?", self.run)
        started = f"{run['started_at'][:19].replace(' ', 'T')}Z"
        return [[started, run["suite_name"], self.run, accepted, drafted, accepted / drafted]]

    def _run_verdicts(self) -> Rows:
        words = [row["verdict"] for row in self.checks]
        order = ("certified", "fault", "inconclusive", "not_run")
        return [[1, self.run, word.replace("_", " "), words.count(word)] for word in order if word in words]

    @cached_property
    def traces(self) -> dict[tuple[str, str, int], Trace]:
        """The records by arm, case and sample."""
        payloads = {row["request_id"]: row["payload"] for row in self.rows("SELECT * FROM token_trace")}
        return {(row["arm"], row["case_id"], row["sample"]): decode(payloads[row["id"]]) for row in self.requests}

    def recorded(self) -> set[str]:
        """The numbers of tokens on record, and the leads of `base` where `spec` parts from it, as pages write them."""
        names = ("p", "uniform", "margin", "logprob", "examined_p", "examined_q", "examined_uniform")
        columns = [getattr(trace, name) for trace in self.traces.values() for name in names]
        return {shown(float(value)) for column in columns for value in column} | {*map(shown, self._leads())}

    def _leads(self) -> Iterator[float]:
        for (arm, case, sample), theirs in self.traces.items():
            ours = self.traces.get((self.spec, case, sample))
            if arm != self.base or ours is None:
                continue
            pairs = enumerate(zip(ours.tokens, theirs.tokens, strict=False))
            for place in [place for place, (own, other) in pairs if own != other][:1]:
                row = theirs.logits[place]
                yield float(row[theirs.tokens[place]] - row[ours.tokens[place]])

    def compared(self) -> set[str]:
        """What a comparison of the run with itself shows of acceptance by domain and by place, and of outputs."""
        counts = [(row[3], row[4]) for row in self._domains()]
        for place in range(1, max(step[1] for step in self.drafts) + 1):
            reached = [step for step in self.drafts if step[1] >= place]
            counts.append((sum(step[2] >= place for step in reached), len(reached)))
        words = {f"{accepted} of {drafted}" for accepted, drafted in counts}
        rates = {shown(accepted / drafted) for accepted, drafted in counts}
        return words | rates | {"0", str(len(self.of(self.spec, "id"))), str(len(self.of(self.base, "id")))}

    def texts(self) -> str:
        """Every text and JSON value of the store."""
        names = [row["name"] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        held = (value for name in names for row in self.rows(f"SELECT * FROM {name}") for value in row.values())
        return "\n".join(value for value in held if isinstance(value, str))
