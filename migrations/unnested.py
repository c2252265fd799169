"""Views that unnest the JSON text of `request_steps` and `request_tokens`: SQL for SQLite and PostgreSQL.

Both kinds of database give the same rows. PostgreSQL unnests arrays side by side; SQLite looks up each value by its
indices.
"""

from collections.abc import Mapping

COUNTED = "CASE WHEN arm.effective -> 'server_counters' IS NULL THEN {value} END"
"""Endpoints state this key, and only they: their record has one step per token and counts none."""

STEPS = {
    "sqlite": """
SELECT request_steps.request_id AS request_id, s.key AS step,
       json_extract(s.value, '$[0]') AS position, json_extract(s.value, '$[1]') AS n_drafted,
       json_extract(s.value, '$[2]') AS n_accepted, json_extract(s.value, '$[3]') AS n_emitted,
       json_extract(s.value, '$[4]') AS draft_us, json_extract(s.value, '$[5]') AS verify_us,
       json_extract(s.value, '$[6]') AS draft_version,
       json_extract(request_steps.draft_versions, '$."' || json_extract(s.value, '$[6]') || '"') AS draft_sha256
FROM request_steps JOIN json_each(request_steps.steps) AS s
""",
    "postgresql": """
SELECT request_steps.request_id AS request_id, CAST(s.number - 1 AS INTEGER) AS step,
       CAST(s.value ->> 0 AS INTEGER) AS position, CAST(s.value ->> 1 AS INTEGER) AS n_drafted,
       CAST(s.value ->> 2 AS INTEGER) AS n_accepted, CAST(s.value ->> 3 AS INTEGER) AS n_emitted,
       CAST(s.value ->> 4 AS BIGINT) AS draft_us, CAST(s.value ->> 5 AS BIGINT) AS verify_us,
       CAST(s.value ->> 6 AS INTEGER) AS draft_version,
       CAST(request_steps.draft_versions AS JSON) ->> (s.value ->> 6) AS draft_sha256
FROM request_steps
CROSS JOIN LATERAL json_array_elements(CAST(request_steps.steps AS JSON)) WITH ORDINALITY AS s(value, number)
""",
}

V_STEP = """
SELECT run.ulid AS run, arm.name AS arm, arm.kind AS arm_kind, request.domain, request.case_id, request.sample,
       decode_step.step, decode_step.position, {drafted} AS n_drafted, {accepted} AS n_accepted,
       decode_step.n_emitted, decode_step.draft_us, decode_step.verify_us,
       decode_step.draft_version, decode_step.draft_sha256, request.id AS request_id
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
JOIN decode_step ON decode_step.request_id = request.id
"""

# an emitted token's number among those of its step: `logprob` holds emitted ones only
NUMBER = "length(replace(replace(substr({roles}, 1, {place} + 1), 'R', ''), 'N', '')) - 1"
V_TOKEN = """
SELECT run.ulid AS run, arm.name AS arm, arm.kind AS arm_kind, request.domain, request.case_id, request.sample,
       {step} AS step, {place} AS place,
       {position} + CASE WHEN {place} >= {drafted} THEN {kept} + {place} - {drafted}
                         WHEN request_tokens.depth IS NULL THEN {place} ELSE {depth} END AS position,
       {token} AS token,
       (SELECT token_piece.piece FROM token_piece WHERE token_piece.token = {token} AND token_piece.tokenizer_id =
         (SELECT MIN(run_artifact.artifact_id) FROM run_artifact
          WHERE run_artifact.run_id = run.id AND run_artifact.role = 'tokenizer')) AS piece,
       CASE {role} WHEN 'A' THEN 'accepted' WHEN 'R' THEN 'rejected' WHEN 'N' THEN 'not examined'
                   WHEN 'C' THEN 'recovered' WHEN 'B' THEN 'bonus'
                   WHEN 'P' THEN CASE arm.effective ->> 'proposer' WHEN 'served' THEN 'unknown' ELSE 'plain' END
       END AS role,
       CASE {role} WHEN 'A' THEN 1 WHEN 'R' THEN 0 WHEN 'N' THEN 0 END AS accepted,
       {p} AS p, {q} AS q,
       CASE WHEN {role} IN ('R', 'N') THEN NULL
            ELSE COALESCE({logprob}, CASE WHEN request_tokens.logprob IS NULL THEN {same} END) END AS logprob,
       CASE WHEN {place} < {drafted} THEN arm.effective ->> 'proposer' END AS drafted_by,
       CASE WHEN {place} < {drafted} THEN {version} END AS draft_version,
       CASE WHEN {place} >= {drafted} THEN NULL
            WHEN request_tokens.parent IS NULL THEN {place} - 1 ELSE {parent} END AS parent,
       request.id AS request_id
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
JOIN request_steps ON request_steps.request_id = request.id
JOIN request_tokens ON request_tokens.request_id = request.id
{unnest}
"""


def _probability(code: str) -> str:
    return f"CASE WHEN {code} BETWEEN 0 AND 700000 THEN exp({code} / -1000.0) WHEN {code} IS NOT NULL THEN 0.0 END"


def _logarithm(code: str) -> str:
    return f"CASE WHEN {code} >= 0 THEN {code} / -1000.0 END"


def _sqlite_token() -> str:
    def at(column: str, place: str) -> str:
        return f"json_extract(request_tokens.{column}, '$[' || s.key || '][' || {place} || ']')"

    roles = "json_extract(request_tokens.role, '$[' || s.key || ']')"
    logprob = at("logprob", f"({NUMBER.format(roles=roles, place='t.key')})")
    return V_TOKEN.format(
        step="s.key",
        place="t.key",
        position="json_extract(s.value, '$[0]')",
        drafted="json_extract(s.value, '$[1]')",
        kept="json_extract(s.value, '$[2]')",
        version="json_extract(s.value, '$[6]')",
        depth=at("depth", "t.key"),
        parent=at("parent", "t.key"),
        token="t.value",
        role=f"substr({roles}, t.key + 1, 1)",
        p=_probability(at("p", "t.key")),
        q=_probability(at("q", "t.key")),
        logprob=_logarithm(logprob),
        same=_logarithm(at("p", "t.key")),
        unnest="JOIN json_each(request_steps.steps) AS s\n"
        "JOIN json_each(json_extract(request_tokens.token, '$[' || s.key || ']')) AS t",
    )


def _postgresql_token() -> str:
    nested = ("token", "p", "q", "parent", "depth")
    steps = ", ".join(f"json_array_elements(CAST(request_tokens.{name} AS JSON))" for name in (*nested, "logprob"))
    unnest = f"""
CROSS JOIN LATERAL ROWS FROM (json_array_elements(CAST(request_steps.steps AS JSON)),
  json_array_elements_text(CAST(request_tokens.role AS JSON)), {steps})
  WITH ORDINALITY AS s(counts, roles, {", ".join(nested)}, logprob, number)
CROSS JOIN LATERAL ROWS FROM ({", ".join(f"json_array_elements_text(s.{name})" for name in nested)})
  WITH ORDINALITY AS t({", ".join(nested)}, number)
"""
    place = "CAST(t.number - 1 AS INTEGER)"
    emitted = NUMBER.format(roles="s.roles", place=place)
    return V_TOKEN.format(
        step="CAST(s.number - 1 AS INTEGER)",
        place=place,
        position="CAST(s.counts ->> 0 AS INTEGER)",
        drafted="CAST(s.counts ->> 1 AS INTEGER)",
        kept="CAST(s.counts ->> 2 AS INTEGER)",
        version="CAST(s.counts ->> 6 AS INTEGER)",
        depth="CAST(t.depth AS INTEGER)",
        parent="CAST(t.parent AS INTEGER)",
        token="CAST(t.token AS INTEGER)",
        role=f"substr(s.roles, {place} + 1, 1)",
        p=_probability("CAST(t.p AS DOUBLE PRECISION)"),
        q=_probability("CAST(t.q AS DOUBLE PRECISION)"),
        logprob=_logarithm(f"CAST(s.logprob ->> ({emitted}) AS DOUBLE PRECISION)"),
        same=_logarithm("CAST(t.p AS DOUBLE PRECISION)"),
        unnest=unnest,
    )


def views(dialect: str) -> Mapping[str, str]:
    """The queries of `decode_step`, `v_step` and `v_token`, in dependency order."""
    counts = {name: COUNTED.format(value=f"decode_step.n_{name}") for name in ("drafted", "accepted")}
    token = _postgresql_token() if dialect == "postgresql" else _sqlite_token()
    return {"decode_step": STEPS[dialect], "v_step": V_STEP.format(**counts), "v_token": token}
