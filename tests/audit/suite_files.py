"""A small valid suite on disk, for tests that break one thing in it."""

from __future__ import annotations

from pathlib import Path

SUITE = """\
version: 1
name: trial
seed: 7
samples: 2
models:
  target: target
  draft: {source: draft}
workloads:
  - {name: tools, prompts: tools.jsonl}
  - {name: chat, prompts: chat.jsonl, limit: 1}
sampling: {max_new_tokens: 16}
checks:
  law: {leak_margin: 0.06}
arms:
  - name: greedy
    proposer:
      kind: draft_model
      model: draft
      gamma: 4
    verifier: greedy
    checks: [greedy_equality, replay]
  - name: sampled
    proposer: {kind: ngram, gamma: 3}
    verifier: chain
    sampling: {temperature: 0.8}
"""

TOOLS = """\
{"id": "a", "messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": [{"name": "weather"}]}
{"id": "b", "prompt": "Once", "domain": "tale"}
"""

CHAT = """\
{"id": "a", "prompt": "Hello"}

{"id": "b", "prompt": "Bye"}
"""


def write_suite(folder: Path, text: str = SUITE) -> Path:
    """Write a suite with its models' folders and prompt files; the suite's path."""
    for model in ("target", "draft"):
        (folder / model).mkdir()
        (folder / model / "config.json").write_text("{}")
    (folder / "tools.jsonl").write_text(TOOLS)
    (folder / "chat.jsonl").write_text(CHAT)
    path = folder / "suite.yaml"
    path.write_text(text)
    return path
