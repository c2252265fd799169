"""What a golden transcript is, how one is decoded, and how two are compared.

A transcript holds the tokens of one request and, per token, the digest of the logits row that decided it, in numerics
`exact`: 8 bytes of BLAKE2b over the row's float32 bytes. They are the same on every machine, so they are checked in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import engine
from engine import proposers, verify
from engine.core.types import Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.models.decoder.lean import LeanModel
from engine.models.files.folder import ModelFolder, model_digest, open_folder, read_tensors
from engine.models.numerics.exact import ExactNumerics
from engine.models.numerics.fast import FastNumerics
from engine.proposers.interface import PlainProposer, ProposerParts
from engine.record.trace import decode
from engine.sampling.draw import draw
from tests.support.lean_tensors import from_tensors

REFERENCE = Path(engine.__file__).parent / "bundled"
HOME = Path(__file__).parent
GAMMA = 4
WRITE = "python -m tests.engine.golden.write"


@dataclass(frozen=True, slots=True)
class Transcript:
    """`digests` are hexadecimal, one per token."""

    id: str
    prompt: tuple[int, ...]
    temperature: float
    seed: int
    stream: int
    tokens: tuple[int, ...]
    digests: tuple[str, ...]

    def request(self) -> Request:
        sampling = SamplingParams(
            temperature=self.temperature, seed=self.seed, max_new_tokens=len(self.tokens), ignore_eos=True
        )
        return Request(self.id, self.prompt, sampling, self.stream)


@dataclass(frozen=True, slots=True)
class Golden:
    """All transcripts of one bundled model, bound to its weights and configuration."""

    model: str
    model_sha256: str
    transcripts: tuple[Transcript, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """How to decode: `proposer` None is plain."""

    target: LeanModel
    proposer: str | None = None
    draft: LeanModel | None = None
    rows: int = 1


def bundled(name: str) -> ModelFolder:
    return open_folder(REFERENCE / name, f"bundled:{name}")


def exact_model(folder: ModelFolder) -> LeanModel:
    return from_tensors(folder.config, read_tensors(folder), torch.float32, folder.label, ExactNumerics())


def fast_model(folder: ModelFolder) -> LeanModel:
    return from_tensors(folder.config, read_tensors(folder), torch.float32, folder.label, FastNumerics())


def decoded(arm: Arm, wanted: Sequence[Transcript]) -> tuple[Transcript, ...]:
    """The transcripts as this engine gives them: same requests, own tokens and digests."""
    found: dict[str, Transcript] = {}
    for protocol, greedy in ((Protocol.GREEDY, True), (Protocol.GUMBEL, False)):
        mine = [each for each in wanted if (each.temperature == 0) == greedy]
        if mine:
            found |= {each.id: each for each in _decoded(arm, mine, protocol)}
    return tuple(found[each.id] for each in wanted)


def _decoded(arm: Arm, wanted: Sequence[Transcript], protocol: Protocol) -> Iterable[Transcript]:
    requests = {each.id: each for each in wanted}
    capacity = max(len(each.prompt) + len(each.tokens) for each in wanted) + GAMMA
    verifier = verify.load(protocol)
    if arm.proposer is None:
        proposer = PlainProposer()
    else:
        parts = ProposerParts(arm.rows, capacity, verifier.facts.draft_rule, draw, (), arm.draft, {})
        proposer = proposers.build(arm.proposer, parts)
    options = LoopOptions(arm.rows, GAMMA, capacity, RecordLevel.SCALARS)
    loop = Loop(arm.target, proposer, verifier, lambda tokens: "", options)
    for each in loop.run([transcript.request() for transcript in wanted]):
        trace = decode(each.trace)
        digests = tuple(f"{digest:016x}" for digest in trace.logits_digest.tolist())
        yield replace(requests[each.request.id], tokens=trace.tokens, digests=digests)


def difference(expected: Transcript, found: Transcript) -> str | None:
    """The first place where two transcripts of one request part; None if they do not."""
    if (len(found.tokens), len(found.digests)) != (len(expected.tokens), len(expected.digests)):
        return f"{expected.id}: {len(found.tokens)} tokens, not {len(expected.tokens)}"
    for index in range(len(expected.tokens)):
        place = f"{expected.id}, position {len(expected.prompt) + index}"
        if found.digests[index] != expected.digests[index]:
            return f"{place}: logits {found.digests[index]}, not {expected.digests[index]}"
        if found.tokens[index] != expected.tokens[index]:
            return f"{place}: token {found.tokens[index]}, not {expected.tokens[index]}"
    return None


def differences(expected: Sequence[Transcript], found: Sequence[Transcript]) -> list[str]:
    places = (difference(a, b) for a, b in zip(expected, found, strict=True))
    return [place for place in places if place is not None]


def read(name: str) -> Golden:
    """The checked-in transcripts of a bundled model."""
    document = json.loads((HOME / f"{name}.json").read_text(encoding="utf-8"))
    cases = tuple(
        Transcript(**{key: tuple(value) if isinstance(value, list) else value for key, value in case.items()})
        for case in document["transcripts"]
    )
    return Golden(document["model"], document["model_sha256"], cases)


def write(name: str, golden: Golden) -> None:
    """One line per transcript, so that a change shows which ones moved."""
    lines = ",\n".join(json.dumps(asdict(each), separators=(",", ":")) for each in golden.transcripts)
    head = f'{{"model": "{golden.model}",\n"model_sha256": "{golden.model_sha256}",\n'
    (HOME / f"{name}.json").write_text(f'{head}"transcripts": [\n{lines}\n]}}\n', encoding="utf-8")


def stale(golden: Golden, folder: ModelFolder) -> str | None:
    """What to say where the weights are not those that the transcripts were made from."""
    own = model_digest(folder.files)
    if own == golden.model_sha256:
        return None
    return (
        f"{golden.model}: the transcripts belong to weights {golden.model_sha256[:12]}, these are {own[:12]}. "
        f"If they were changed on purpose, run {WRITE}"
    )
