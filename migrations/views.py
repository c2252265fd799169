"""The queries of a store's views, in the words of SQLite or PostgreSQL."""

from collections.abc import Mapping
from typing import Final

from migrations import governance, unnested

COUNTED: Final = ", ".join(
    f"{unnested.COUNTED.format(value=f'request.{name}')} AS {name}" for name in ("n_steps", "n_drafted", "n_accepted")
)
"""Counts of a request. `->` gives NULL for an absent key only, not for a null."""
V_REQUEST: Final = f"""
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       request.case_id, request.sample, request.domain, request.seed, request.n_prompt, request.n_output,
       {COUNTED}, request.finish_reason, request.latency_us,
       request.sampling_sha256, content.output_sha256, content.text, request.record_hash,
       request.id AS request_id, token_trace.sha256 AS trace_sha256
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
LEFT JOIN token_trace ON token_trace.request_id = request.id
LEFT JOIN content ON content.request_id = request.id
"""
V_ACCEPTANCE: Final = """
SELECT run, arm, arm_kind, domain, requests, n_steps, n_drafted, n_accepted, n_output, latency_us,
       CAST(n_accepted AS DOUBLE PRECISION) / NULLIF(n_drafted, 0) AS draft_acceptance_rate,
       CAST(n_output AS DOUBLE PRECISION) / NULLIF(n_steps, 0) AS tokens_per_step
FROM (
  SELECT run, arm, arm_kind, domain, COUNT(*) AS requests,
         CAST(SUM(n_steps) AS BIGINT) AS n_steps, CAST(SUM(n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(n_accepted) AS BIGINT) AS n_accepted, CAST(SUM(n_output) AS BIGINT) AS n_output,
         CAST(SUM(latency_us) AS BIGINT) AS latency_us
  FROM v_request GROUP BY run, arm, arm_kind, domain
) AS sums
"""
V_CHECK: Final = """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       check_result.name AS check_name, check_result.claim, check_result.verdict, check_result.level, check_result.n,
       check_result.statistic, check_result.p_value, check_result.effect, check_result.bound, check_result.margin,
       check_result.summary, check_result.created_at
FROM check_result
JOIN arm ON arm.id = check_result.arm_id
JOIN run ON run.id = check_result.run_id
WHERE check_result.id IN (SELECT MAX(id) FROM check_result GROUP BY arm_id, name)
"""
V_COVERAGE: Final = """
SELECT v.run, v.suite, v.arm, v.check_name, coverage.situation, coverage.occurred, coverage.examined, coverage.least,
       CASE WHEN coverage.examined < coverage.least THEN 1 ELSE 0 END AS short
FROM coverage
JOIN check_result ON check_result.id = coverage.check_result_id
JOIN (
  SELECT run.id AS run_id, run.ulid AS run, run.suite_name AS suite, arm.id AS arm_id, arm.name AS arm,
         check_result.name AS check_name, MAX(check_result.id) AS latest
  FROM check_result
  JOIN arm ON arm.id = check_result.arm_id
  JOIN run ON run.id = check_result.run_id
  GROUP BY run.id, run.ulid, run.suite_name, arm.id, arm.name, check_result.name
) AS v ON v.latest = check_result.id
"""
V_IDENTITY: Final = """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, check_result.verdict,
       {model} AS model, {system_fingerprint} AS system_fingerprint, {provider} AS provider,
       {service_tier} AS service_tier, {instance} AS instance, CAST({answers} AS INTEGER) AS answers, {first} AS first
FROM check_result
JOIN arm ON arm.id = check_result.arm_id
JOIN run ON run.id = check_result.run_id
{unnest}
WHERE check_result.name = 'identity'
  AND check_result.id IN (SELECT MAX(id) FROM check_result GROUP BY arm_id, name)
"""
NAMES: Final = ("model", "system_fingerprint", "provider", "service_tier", "instance", "answers", "first")
UNNEST: Final = {
    "sqlite": "JOIN json_each(check_result.details, '$.identities') AS seen",
    "postgresql": "CROSS JOIN LATERAL json_array_elements(check_result.details -> 'identities') AS seen(value)",
}
V_DRAFT_VERSION: Final = """
SELECT run, arm, arm_kind, draft_version, draft_sha256, n_requests, n_steps, n_drafted, n_accepted,
       CAST(n_accepted AS DOUBLE PRECISION) / NULLIF(n_drafted, 0) AS draft_acceptance_rate
FROM (
  SELECT v_request.run, v_request.arm, v_request.arm_kind, decode_step.draft_version, decode_step.draft_sha256,
         COUNT(DISTINCT decode_step.request_id) AS n_requests, COUNT(*) AS n_steps,
         CAST(SUM(decode_step.n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(decode_step.n_accepted) AS BIGINT) AS n_accepted
  FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
  WHERE decode_step.draft_version IS NOT NULL
  GROUP BY v_request.run, v_request.arm, v_request.arm_kind, decode_step.draft_version, decode_step.draft_sha256
) AS sums
"""
EVENT: Final = """
SELECT run.ulid AS run, arm.name AS arm, arm.kind AS arm_kind, request.domain, request.case_id, request.sample,
       {columns}, request.id AS request_id
FROM {table}
JOIN request ON request.id = {table}.request_id
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
"""
EVENT_COLUMNS: Final = {
    "constraint_event": ("library", "version", "refused_token", "whole", "not_read"),
    "tool_event": ("call", "name", "arguments", "first_token", "end_token", "problem"),
    "safety_event": (
        *("event", "component", "version", "ruleset_sha256", "side", "action", "category", "token"),
        *("first_character", "end_character"),
    ),
}
V_WATCH: Final = """
SELECT watch.id AS watch, run.ulid AS run, watch.url, watch_reading.model, watch_reading.label,
       watch_reading.changed, watch_reading.at,
       watch_reading.seconds, watch_reading.gap, watch_reading.restarted,
       watch_reading.drafts, watch_reading.drafted, watch_reading.accepted,
       CAST(watch_reading.accepted AS DOUBLE PRECISION) / NULLIF(watch_reading.drafted, 0) AS draft_acceptance_rate,
       watch_reading.acceptance_length, watch_reading.drafts / NULLIF(watch_reading.seconds, 0) AS drafts_per_s,
       watch_reading.positions, watch_reading.requests, watch_reading.errors,
       watch_reading.latency_p50_s, watch_reading.latency_p95_s, watch_reading.latency_p99_s,
       watch.reference, watch_reading.fall, watch_reading.rise, watch_reading.alarm
FROM watch_reading
JOIN watch ON watch.id = watch_reading.watch_id
LEFT JOIN run ON run.id = watch.run_id
"""


def views(dialect: str) -> Mapping[str, str]:
    """The queries by name, in dependency order."""
    events = {
        f"v_{table}": EVENT.format(columns=", ".join(f"{table}.{name}" for name in columns), table=table)
        for table, columns in EVENT_COLUMNS.items()
    }
    return {
        "v_request": V_REQUEST,
        "v_acceptance": V_ACCEPTANCE,
        "v_check": V_CHECK,
        "v_coverage": V_COVERAGE,
        "v_identity": V_IDENTITY.format(**{name: f"seen.value ->> '{name}'" for name in NAMES}, unnest=UNNEST[dialect]),
        **unnested.views(dialect),
        "v_draft_version": V_DRAFT_VERSION,
        **{name: governance.listed(query, dialect) for name, query in governance.VIEWS.items()},
        **events,
        "v_watch": V_WATCH,
    }
