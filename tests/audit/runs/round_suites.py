"""A small suite of one arm over scripted models, for runs of several rounds."""

from __future__ import annotations

import json

SUITE = """
version: 1
name: rounds
backend: scripted
seed: {seed}
models: {{target: 'scripted:1', draft: 'scripted:2'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 30, ignore_eos: true}}
coverage: {{waive: [small_residual], directed: off}}
arms:
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: {{acceptance_theory: {{margin: {margin}, alpha: {alpha}}}{more}}}
    {fault}
"""
ROUND = 2 * 6 * 30
"""Tokens of a round: baseline and candidate, six cases of 30 tokens."""


def suite_file(folder, margin=0.1, alpha=0.001, seed=5, fault="", more=""):
    path = folder / "suite.yaml"
    fault = f"fault: {fault}" if fault else ""
    path.write_text(SUITE.format(margin=margin, alpha=alpha, seed=seed, fault=fault, more=more))
    rows = [{"id": f"w{i}", "prompt": "abc"[: 1 + i % 3] * (i + 1)} for i in range(6)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
