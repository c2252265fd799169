"""The heads that vLLM is given, what it is asked, and how its answers come back."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import open_models
from engine.core.types import Protocol, RecordLevel
from engine.models.loading import load_model
from engine.train.prompts import prompt_rows

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "engine" / "bundled"
DOMAINS = ("tools", "copy", "code")
PER_DOMAIN = 4
GAMMA = 3
TOKENS = 48
"""New tokens per prompt."""
TIMEOUT = 540
"""Seconds for one engine: it starts in 20 to 50 on two quiet cores."""


@dataclass(frozen=True)
class Case:
    """A head: vLLM's method, our proposer, vLLM's class, and the folder of the head; MTP's holds its target too."""

    kind: str
    module: str
    head: Path

    @property
    def whole(self):
        return self.kind == "mtp"

    @property
    def target(self):
        return self.head if self.whole else REFERENCE / "target"

    @property
    def speculative(self):
        head = {} if self.whole else {"model": str(self.head)}
        return {"method": self.kind, "num_speculative_tokens": GAMMA, **head}


@dataclass(frozen=True)
class Served:
    """What one engine said; `forwards` [recorded prompt][call] are the drafter's, in order."""

    outputs: list
    module: str | None
    forwards: list = field(default_factory=list)

    def column(self, name):
        return [each[name] for each in self.outputs]


def prompts():
    """Token ids, the domains in turn, so that the first three are one of each."""
    encode = arm(Case("medusa", "", REFERENCE / "medusa")).encode
    found = prompt_rows(PER_DOMAIN)
    rows = [found[domain][i] for i in range(PER_DOMAIN) for domain in DOMAINS]
    return [
        list(encode(Prompt(tuple(row.get("messages", ())), tuple(row.get("tools", ())), row.get("prompt"))))
        for row in rows
    ]


def arm(case):
    """Our engine with the bundled target and the head, greedy."""
    backend = open_models({"target": ModelSource("bundled:target"), "head": ModelSource(str(case.head))})
    return backend.arm(EngineSpec(Protocol.GREEDY, case.kind, GAMMA, "head", level=RecordLevel.TOKENS, rows=4))


def our_target():
    return load_model("bundled:target").model


def serve(out, asked, model, speculative=None):
    """Run one engine; raises with its last words if it fails."""
    recorded = len(DOMAINS) if speculative else 0
    engine = {"model": str(model), "speculative_config": speculative}
    job = out / "job.json"
    job.write_text(json.dumps({"engine": engine, "prompts": asked, "recorded": recorded, "max_tokens": TOKENS}))
    command = [sys.executable, "-m", "tests.vllm.serve", str(job), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    document = json.loads((out / "outputs.json").read_text(encoding="utf-8"))
    forwards = [torch.load(out / f"forwards-{i}.pt", weights_only=True) for i in range(recorded)]
    return Served(document["outputs"], document["module"], forwards)
