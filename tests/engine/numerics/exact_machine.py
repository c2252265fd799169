"""Hashes of the bundled target's logits in this process, as JSON: `python -m tests.engine.numerics.exact_machine`."""

import hashlib
import json
from dataclasses import asdict, dataclass

import torch

from engine.models.decoder.lean import LeanModel
from engine.models.loading import load_model
from engine.models.numerics.exact import ExactNumerics
from engine.models.numerics.ordered.ordered import OrderedNumerics

from .exact_models import by_chains


@dataclass(frozen=True)
class Hashes:
    capability: str
    exact: str
    ordered: str
    fast: str


def hashes():
    torch.set_num_threads(1)
    fast = load_model("bundled:target").model
    exact, ordered = (
        LeanModel(fast.config, fast.weights, numerics=mode) for mode in (ExactNumerics(), OrderedNumerics())
    )
    tokens = [(17 * i * i + 5 * i) % fast.vocabulary for i in range(60)]
    found = [
        hashlib.sha256(by_chains(each, tokens, 7).numpy().tobytes()).hexdigest() for each in (exact, ordered, fast)
    ]
    return Hashes(torch.backends.cpu.get_cpu_capability(), *found)


if __name__ == "__main__":
    print(json.dumps(asdict(hashes())))
