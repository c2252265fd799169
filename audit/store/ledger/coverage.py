"""Coverage by the log: the columns of each table that an entry hashes, and where every other column is covered.

The order of columns is part of the log: a new nullable column goes to the end, where NULL leaves older entries as they
are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RECORD: Final = "the record hash of its request covers it, itself or by a salted commitment"
DERIVED: Final = "it is derived from covered rows for queries, and decides nothing"
STATE: Final = "it changes while the run lasts: the run's entries of kind `state` hold it"


@dataclass(frozen=True, slots=True)
class Covered:
    """The columns of one table that its entries hash; the first `keys` of them are the primary key."""

    table: str
    columns: tuple[str, ...]
    keys: int = 1


RUN_STATE: Final = Covered("run", ("id", "status", "finished_at", "record_root", "tokens", "exit_code", "content_root"))
"""Columns of a run that an entry of kind `state` holds."""

COVERED: Final[Mapping[str, Covered]] = {
    covered.table: covered
    for covered in (
        Covered("artifact", ("id", "kind", "name", "revision", "sha256", "manifest")),
        Covered("environment", ("id", "sha256", "packages", "hardware", "code")),
        Covered(
            "run",
            (
                *("id", "ulid", "suite_name", "suite_artifact_id", "environment_id", "config", "started_at", "actor"),
                *("code_commit", "purpose", "ticket"),
            ),
        ),
        Covered("run_artifact", ("run_id", "role", "name", "revision", "artifact_id"), keys=3),
        Covered("run_event", ("id", "run_id", "status", "at", "detail")),
        Covered("arm", ("id", "run_id", "name", "kind", "level", "spec", "effective", "lossless", "context_sha256")),
        Covered("request", ("id", "run_id", "arm_id", "record_hash")),
        Covered("token_trace", ("request_id", "format", "n_events")),
        Covered("constraint_event", ("request_id", "library", "version", "refused_token", "whole", "not_read")),
        Covered(
            "safety_event",
            (
                *("request_id", "event", "component", "version", "ruleset_sha256", "side", "action", "category"),
                *("token", "first_character", "end_character"),
            ),
            keys=2,
        ),
        Covered("judgement", ("id", "run_id", "environment_id", "actor", "created_at")),
        Covered(
            "check_result",
            (
                *("id", "run_id", "arm_id", "name", "claim", "verdict", "level", "n", "statistic", "p_value", "effect"),
                *("bound", "margin", "summary", "n_findings", "findings_commitment", "details", "created_at"),
                "judgement_id",
            ),
        ),
        # with the salt, so that the hash of an erased row cannot be tested by guessing
        Covered("finding", ("check_result_id", "salt", "summary", "findings")),
        Covered("coverage", ("check_result_id", "situation", "occurred", "examined", "least"), keys=2),
        Covered(
            "gate_decision", ("id", "run_id", "policy_sha256", "policy", "decision", "reasons", "actor", "created_at")
        ),
        Covered(
            "attachment",
            ("id", "run_id", "report_before", "report_after", "format", "location", "statement", "created_at"),
        ),
        Covered(
            "attestation", ("id", "run_id", "predicate_type", "payload_sha256", "envelope", "subjects", "created_at")
        ),
        Covered(
            "registration", ("id", "suite_name", "suite_sha256", "policy_name", "policy_sha256", "actor", "created_at")
        ),
        Covered(
            "watch",
            (
                *("id", "run_id", "url", "reference", "reference_from", "rise_reference", "unit", "alpha"),
                *("interval_s", "actor", "created_at"),
            ),
        ),
        Covered(
            "watch_reading",
            (
                *("id", "watch_id", "model", "at", "seconds", "gap", "restarted", "drafts", "drafted", "accepted"),
                *("positions", "acceptance_length", "requests", "errors", "latency_p50_s", "latency_p95_s"),
                *("latency_p99_s", "draft_length", "fall", "rise", "alarm", "counters", "label", "answers", "changed"),
            ),
        ),
        Covered("erasure", ("id", "run_id", "request_id", "check_result_id", "what", "reason", "actor", "created_at")),
        Covered("checkpoint", ("id", "size", "root", "note", "created_at")),
    )
}
"""By table, in the order in which one transaction logs its rows."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "request": RECORD,
    "content": RECORD,
    "token_trace": RECORD,
    "request_steps": RECORD,
    "request_tokens": RECORD,
    "token_piece": DERIVED,
    "tool_event": "its request's trace gives it, and the check of a run recomputes it",
    "arm_speculation": "its arm's configuration gives it, and the check of a run recomputes it",
    "run_sums": "the run's rows give them, and `audit db check` makes them again",
    "run": STATE,
    "log_entry": "it is the log",
}
"""Tables with columns outside `COVERED`, and what covers those."""
