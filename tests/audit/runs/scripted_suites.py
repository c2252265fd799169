"""A suite on scripted models, which needs no network and takes a second."""

from __future__ import annotations

import json
from pathlib import Path

SUITE = """coverage: {{directed: off}}
version: 1
name: scripted
backend: scripted
seed: 5
batch_size: 3
samples: 2
models: {{target: 'scripted:1', draft: 'scripted:2'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 12}}
arms:
  - name: greedy
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: greedy
    sampling: {{temperature: 0}}
    checks: [greedy_equality, replay]
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: [replay]
  - name: gumbel
    proposer: {{kind: ngram, gamma: 2}}
    verifier: gumbel
    sampling: {{temperature: 1}}
    checks: [{gumbel_checks}]
"""


def suite_file(folder: Path, gumbel_checks: str = "replay") -> Path:
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(gumbel_checks=gumbel_checks))
    rows = [{"id": f"w{i}", "prompt": "abc"[: 1 + i % 3] * (i + 1)} for i in range(4)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
