"""Views on runs, arms, prompts, gates and acceptance: SQL that both kinds of database read.

`{list:NAME}` stands for the distinct values of a column in one text, `{day}` for a run's day, `{prompt}` for the text
of a prompt; see `listed`. Rates whose denominator is 0 are NULL, and so are counts of endpoints
(`migrations.unnested.COUNTED`).
"""

from typing import Final

V_ARM: Final = """
SELECT run.ulid AS run, run.suite_name AS suite, run.status, run.started_at, run.actor, run.purpose, run.ticket,
       arm.name AS arm, arm.kind AS arm_kind, arm.level, arm_speculation.speculation, arm_speculation.proposer,
       arm_speculation.proposer_version, arm_speculation.gamma, arm_speculation.tree, arm_speculation.rule,
       arm.lossless, arm_speculation.expected_equivalence, arm_speculation.numerics_probe_sha256,
       sums.requests, sums.n_output, sums.n_steps, sums.n_drafted, sums.n_accepted,
       CAST(sums.n_accepted AS DOUBLE PRECISION) / NULLIF(sums.n_drafted, 0) AS draft_acceptance_rate,
       arm.effective, arm.context_sha256
FROM arm
JOIN run ON run.id = arm.run_id
LEFT JOIN arm_speculation ON arm_speculation.arm_id = arm.id
LEFT JOIN (
  SELECT run, arm, COUNT(*) AS requests, CAST(SUM(n_output) AS BIGINT) AS n_output,
         CAST(SUM(n_steps) AS BIGINT) AS n_steps, CAST(SUM(n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(n_accepted) AS BIGINT) AS n_accepted
  FROM v_request GROUP BY run, arm
) AS sums ON sums.run = run.ulid AND sums.arm = arm.name
"""

V_RUN: Final = """
SELECT run.ulid AS run, run.suite_name AS suite, run.status, run.started_at, run.finished_at, run.exit_code,
       run.actor, run.purpose, run.ticket, run.code_commit, environment.sha256 AS environment_sha256,
       environment.packages, environment.hardware, run.record_root,
       sums.arms, sums.speculation, sums.proposers, sums.proposer_versions, sums.gammas, sums.trees, sums.rules,
       sums.lossless, sums.expected_equivalences, sums.requests, sums.n_output, sums.n_drafted, sums.n_accepted
FROM run
JOIN environment ON environment.id = run.environment_id
LEFT JOIN (
  SELECT run, COUNT(*) AS arms, MAX(CASE WHEN speculation THEN 1 ELSE 0 END) AS speculation,
         {list:proposer} AS proposers, {list:proposer_version} AS proposer_versions, {list:gamma} AS gammas,
         {list:tree} AS trees, {list:spec_rule} AS rules, MIN(CASE WHEN lossless THEN 1 ELSE 0 END) AS lossless,
         {list:expected_equivalence} AS expected_equivalences, CAST(SUM(requests) AS BIGINT) AS requests,
         CAST(SUM(n_output) AS BIGINT) AS n_output, CAST(SUM(n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(n_accepted) AS BIGINT) AS n_accepted
  FROM (SELECT v_arm.*, CASE WHEN speculation THEN rule END AS spec_rule FROM v_arm) AS arms GROUP BY run
) AS sums ON sums.run = run.ulid
"""

V_PROMPT: Final = """
SELECT run.ulid AS run, arm.name AS arm, request.domain, request.case_id, request.sample, request.n_prompt,
       {prompt_ids} AS prompt_ids, {prompt} AS prompt, request.id AS request_id
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
LEFT JOIN content ON content.request_id = request.id
"""

V_GATE: Final = """
SELECT run.ulid AS run, run.suite_name AS suite, gate_decision.decision, gate_decision.reasons,
       gate_decision.policy_sha256, gate_decision.policy, gate_decision.actor, gate_decision.created_at
FROM gate_decision LEFT JOIN run ON run.id = gate_decision.run_id
"""

RATES: Final = """
       CAST(n_accepted AS DOUBLE PRECISION) / NULLIF(n_drafted, 0) AS draft_acceptance_rate,
       CAST(n_output AS DOUBLE PRECISION) / NULLIF(n_steps, 0) AS tokens_per_step
"""
SUMS: Final = """
         CAST(SUM(requests) AS BIGINT) AS requests, CAST(SUM(n_steps) AS BIGINT) AS n_steps,
         CAST(SUM(n_drafted) AS BIGINT) AS n_drafted, CAST(SUM(n_accepted) AS BIGINT) AS n_accepted,
         CAST(SUM(n_output) AS BIGINT) AS n_output
"""


def _by(columns: str) -> str:
    """Sums over speculating arms by some of their columns."""
    return f"""
SELECT {columns}, arms, requests, n_steps, n_drafted, n_accepted, n_output, {RATES}
FROM (
  SELECT {columns}, COUNT(*) AS arms, {SUMS}
  FROM v_arm WHERE speculation GROUP BY {columns}
) AS sums
"""


V_POSITION: Final = """
WITH RECURSIVE
counts AS (
  SELECT run, arm, n_drafted, n_accepted, COUNT(*) AS steps
  FROM v_step WHERE n_drafted > 0 GROUP BY run, arm, n_drafted, n_accepted
),
place(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM place WHERE i < (SELECT MAX(n_drafted) FROM counts))
SELECT run, arm, i AS draft_position, CAST(SUM(steps) AS BIGINT) AS n_steps,
       CAST(SUM(CASE WHEN n_drafted >= i THEN steps ELSE 0 END) AS BIGINT) AS n_drafted,
       CAST(SUM(CASE WHEN n_accepted >= i THEN steps ELSE 0 END) AS BIGINT) AS n_accepted,
       CAST(SUM(CASE WHEN n_accepted >= i THEN steps ELSE 0 END) AS DOUBLE PRECISION)
         / NULLIF(SUM(CASE WHEN n_drafted >= i THEN steps ELSE 0 END), 0) AS draft_acceptance_rate
FROM counts CROSS JOIN place WHERE i <= (SELECT MAX(n_drafted) FROM counts) GROUP BY run, arm, i
"""

BUCKETS: Final = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_BUCKET: Final = " ".join(f"WHEN position >= {least} THEN {least}" for least in reversed(BUCKETS))
V_CONTEXT: Final = f"""
SELECT run, arm, context_from, n_steps, n_drafted, n_accepted, n_output, {RATES}
FROM (
  SELECT run, arm, context_from, COUNT(*) AS n_steps, CAST(SUM(n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(n_accepted) AS BIGINT) AS n_accepted, CAST(SUM(n_emitted) AS BIGINT) AS n_output
  FROM (SELECT v_step.*, CASE {_BUCKET} END AS context_from FROM v_step WHERE n_drafted IS NOT NULL) AS steps
  GROUP BY run, arm, context_from
) AS sums
"""

VIEWS: Final = {
    "v_arm": V_ARM,
    "v_run": V_RUN,
    "v_prompt": V_PROMPT,
    "v_gate": V_GATE,
    "v_acceptance_proposer": _by("proposer, proposer_version, rule"),
    "v_acceptance_gamma": _by("proposer, gamma, tree, rule"),
    "v_acceptance_day": _by("day, proposer, rule").replace(
        "FROM v_arm", "FROM (SELECT v_arm.*, {day} AS day FROM v_arm) AS arms"
    ),
    "v_acceptance_position": V_POSITION,
    "v_acceptance_context": V_CONTEXT,
}
"""In dependency order."""

_PIECES: Final = """(SELECT {joined} FROM {ids}
  JOIN token_piece ON token_piece.token = {id} AND token_piece.tokenizer_id =
    (SELECT MIN(run_artifact.artifact_id) FROM run_artifact
     WHERE run_artifact.run_id = run.id AND run_artifact.role = 'tokenizer'))"""
_PROMPT: Final = {
    "sqlite": _PIECES.format(
        # an aggregate has no order before SQLite 3.44; each row of the window has the whole text
        joined="group_concat(token_piece.piece, '') OVER "
        "(ORDER BY t.key ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        ids="json_each(content.prompt_ids) AS t",
        id="t.value",
    ),
    "postgresql": _PIECES.format(
        joined="string_agg(token_piece.piece, '' ORDER BY t.number)",
        ids="json_array_elements_text(content.prompt_ids) WITH ORDINALITY AS t(id, number)",
        id="CAST(t.id AS INTEGER)",
    ),
}


def listed(query: str, dialect: str) -> str:
    """The query with its placeholders in a database's own words."""
    postgresql = dialect == "postgresql"
    day = "to_char(started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')" if postgresql else "strftime('%Y-%m-%d', started_at)"
    query = (
        query.replace("{day}", day).replace("{prompt_ids}", "content.prompt_ids").replace("{prompt}", _PROMPT[dialect])
    )
    for name in ("proposer_version", "proposer", "gamma", "tree", "spec_rule", "expected_equivalence"):
        joined = f"string_agg(DISTINCT CAST({name} AS TEXT), ',')" if postgresql else f"group_concat(DISTINCT {name})"
        query = query.replace(f"{{list:{name}}}", joined)
    return query
