"""The named queries on a store. They use the documented views and tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from audit.errors import UserError


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A named query. `params` holds the defaults of its parameters other than `run`."""

    title: str
    sql: str
    params: Mapping[str, Any] = field(default_factory=dict)


ACCEPTANCE: Final = """
SELECT arm, domain, requests, n_steps, n_drafted, n_accepted, n_output, draft_acceptance_rate, tokens_per_step
FROM v_acceptance WHERE run = :run ORDER BY arm, domain
"""

# Every position counts in every step with drafts, so that the rates are
# unconditional: P(position kept) = P(at least that many kept).
POSITIONS: Final = """
WITH RECURSIVE
steps AS (
  SELECT v_request.arm AS arm, decode_step.n_drafted, decode_step.n_accepted
  FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
  WHERE v_request.run = :run AND decode_step.n_drafted > 0
),
position(i) AS (
  SELECT 1 UNION ALL SELECT i + 1 FROM position WHERE i < (SELECT MAX(n_drafted) FROM steps)
)
SELECT arm, i AS position, COUNT(*) AS drafts,
       CAST(SUM(CASE WHEN n_drafted >= i THEN 1 ELSE 0 END) AS BIGINT) AS drafted_here,
       CAST(SUM(CASE WHEN n_accepted >= i THEN 1 ELSE 0 END) AS BIGINT) AS kept,
       CAST(SUM(CASE WHEN n_accepted >= i THEN 1 ELSE 0 END) AS DOUBLE PRECISION) / COUNT(*) AS rate
FROM steps CROSS JOIN position GROUP BY arm, i ORDER BY arm, i
"""

DIVERGENT: Final = """
SELECT candidate.arm, baseline.arm AS baseline, candidate.case_id, candidate.sample, candidate.domain,
       baseline.n_output AS baseline_tokens, candidate.n_output AS tokens
FROM v_request AS candidate
JOIN v_request AS baseline
  ON baseline.run = candidate.run AND baseline.case_id = candidate.case_id AND baseline.sample = candidate.sample
 AND baseline.sampling_sha256 = candidate.sampling_sha256 AND baseline.arm_kind = 'baseline'
WHERE candidate.run = :run AND candidate.arm_kind <> 'baseline'
  AND candidate.output_sha256 <> baseline.output_sha256
ORDER BY candidate.arm, candidate.case_id, candidate.sample
"""

SLOW: Final = """
SELECT arm, case_id, sample, domain, n_output, n_steps, latency_us,
       CAST(latency_us AS DOUBLE PRECISION) / NULLIF(n_output, 0) AS us_per_token
FROM v_request WHERE run = :run ORDER BY latency_us DESC, arm, case_id, sample LIMIT :limit
"""

# `v_request` has no number of steps for an endpoint's arm, whose record has one step per token
STEPS: Final = """
SELECT v_request.arm, decode_step.n_emitted AS tokens_in_step, COUNT(*) AS steps
FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
WHERE v_request.run = :run AND v_request.n_steps IS NOT NULL GROUP BY v_request.arm, decode_step.n_emitted
ORDER BY v_request.arm, decode_step.n_emitted
"""

REJECTED: Final = """
SELECT arm, case_id, sample, domain, n_drafted, n_accepted,
       CAST(n_accepted AS DOUBLE PRECISION) / n_drafted AS draft_acceptance_rate
FROM v_request WHERE run = :run AND n_drafted > 0
ORDER BY draft_acceptance_rate, n_drafted DESC, arm, case_id, sample LIMIT :limit
"""

CHECKS: Final = """
SELECT arm, check_name, claim, verdict, level, n, effect, bound, margin, p_value, summary
FROM v_check WHERE run = :run ORDER BY arm, check_name
"""

COVERAGE: Final = """
SELECT arm, check_name, situation, occurred, examined, least, short
FROM v_coverage WHERE run = :run ORDER BY arm, check_name, situation
"""

DRAFT_VERSIONS: Final = """
SELECT arm, draft_version, draft_sha256, n_requests, n_steps, n_drafted, n_accepted, draft_acceptance_rate
FROM v_draft_version WHERE run = :run ORDER BY arm, draft_version, draft_sha256
"""

# the roles say which tokens were emitted
TEXTS: Final = """
SELECT v_request.run, arm, case_id, sample, CAST(prompt_ids AS TEXT) AS prompt_ids, CAST(token AS TEXT) AS token,
       CAST(role AS TEXT) AS role
FROM v_request JOIN content USING (request_id) JOIN request_tokens USING (request_id)
WHERE prompt_ids IS NOT NULL AND (v_request.run = :run OR :all_runs = 1 AND v_request.run IN (
  SELECT other.ulid FROM run
  JOIN run_artifact AS own ON own.run_id = run.id AND own.role = 'target'
  JOIN run_artifact AS same ON same.artifact_id = own.artifact_id AND same.role = 'target'
  JOIN run AS other ON other.id = same.run_id WHERE run.ulid = :run
))
ORDER BY v_request.run, arm, case_id, sample
"""

ALL_RUNS: Final = MappingProxyType({"all_runs": 0})
LIMIT: Final = MappingProxyType({"limit": 20})

NAMED: Final[Mapping[str, NamedQuery]] = MappingProxyType(
    {
        "acceptance": NamedQuery("accepted and emitted tokens by arm and domain", ACCEPTANCE),
        "checks": NamedQuery("verdicts by arm and check", CHECKS),
        "coverage": NamedQuery("situations that each check examined, by arm", COVERAGE),
        "divergent": NamedQuery("requests whose output differs from a baseline at the same sampling", DIVERGENT),
        "draft_versions": NamedQuery("accepted tokens by version of a draft that learns", DRAFT_VERSIONS),
        "positions": NamedQuery("unconditional acceptance by draft position", POSITIONS),
        "rejected": NamedQuery("requests with the lowest draft acceptance rate", REJECTED, LIMIT),
        "slow": NamedQuery("requests with the largest latency", SLOW, LIMIT),
        "steps": NamedQuery("how many steps emitted how many tokens", STEPS),
        "texts": NamedQuery("prompts and emitted tokens; with all_runs=1 of all runs of this target", TEXTS, ALL_RUNS),
    }
)


def named(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A named query's SQL and its parameters; the caller's values override the defaults.

    Raises:
        UserError: unknown query or unknown parameter.
    """
    if name not in NAMED:
        # imported with the first mistake
        import difflib

        near = difflib.get_close_matches(name, NAMED, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no query {name!r}; {hint}there are: {', '.join(NAMED)}")
    query = NAMED[name]
    accepted = {"run", *query.params}
    for key in given:
        if key not in accepted:
            raise UserError(f"query {name!r} has no parameter {key!r}; it has: {', '.join(sorted(accepted))}")
    return query.sql, {**query.params, **given}
