"""What recording costs by the size of the vocabulary, and whether a long arm can be judged in little memory.

The pair is a random llama, 128 wide, with a draft of its first layer. Answers are sampled at temperature 1.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time

import click
import torch
from safetensors.torch import save_file

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, LazyRequests, Level, RequestRecord
from audit.sweep.choice import MedianInterval
from audit.sweep.sweep import interleaved
from engine import proposers, verify
from engine.core.types import Generation, Protocol, RecordLevel, Request, SamplingParams
from engine.decode.loop import Loop, LoopOptions
from engine.proposers.interface import ProposerParts
from engine.record.columns import KEPT, empty
from engine.record.effective import Effective
from engine.record.rows.kept_rows import PLACE_BYTES, share_of
from engine.record.trace import decode, encode
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of
from tests.bench.battery import peak
from tests.bench.figures import Line, Table, ratio, rendered
from tests.bench.page import ROOT, put
from tests.bench.setting import Pair, lean

VOCABULARIES = (2048, 32_000, 151_936, 262_144)
OFF = "off"
LEVELS = (RecordLevel.TOKENS, RecordLevel.SCALARS, RecordLevel.TOPK, RecordLevel.FULL)
LENGTH = 64
GAMMA = 4
WIDTH = 128
HEADS = 4
LAYERS = 2
CHECKS = ("replay", "q_contract", "law")
BATCH = 4
"""Requests at once of the arm that is judged."""
SIZES = ROOT / "docs" / "record-sizes.json"


def random_pair(folder: Path, size: int) -> Pair:
    """A random target and its first layer as the draft."""
    made = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(size, WIDTH, generator=made),
        "model.norm.weight": _ones() * 0.3,
    }
    for layer in range(LAYERS):
        tensors |= {f"model.layers.{layer}.{name}": value for name, value in _layer(made).items()}
    for name, layers in (("target", LAYERS), ("draft", 1)):
        home = folder / name
        home.mkdir()
        kept = {key: value for key, value in tensors.items() if f"layers.{layers}" not in key}
        save_file(kept, home / "model.safetensors")
        (home / "config.json").write_text(json.dumps(_config(size, layers)))
    return Pair(lean(str(folder / "target"), mode="tiled"), lean(str(folder / "draft")))


def _ones() -> torch.Tensor:
    return torch.ones(WIDTH)


def _layer(made: torch.Generator) -> dict[str, torch.Tensor]:
    shapes = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
    shapes |= {
        "mlp.gate_proj": (2 * WIDTH, WIDTH),
        "mlp.up_proj": (2 * WIDTH, WIDTH),
        "mlp.down_proj": (WIDTH, 2 * WIDTH),
    }
    weights = {
        f"{name}.weight": torch.randn(*shape, generator=made) * shape[1] ** -0.5 for name, shape in shapes.items()
    }
    return weights | {"input_layernorm.weight": _ones(), "post_attention_layernorm.weight": _ones()}


def _config(size: int, layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "num_hidden_layers": layers,
        "vocab_size": size,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }


def decoded(pair: Pair, requests: list[Request], level: RecordLevel | None, rows: int = 1) -> Iterator[Generation]:
    """The generations of a batch of `rows`, recorded at a level or not at all."""
    verifier, capacity = verify.load(Protocol.CHAIN), LENGTH + GAMMA + 8
    parts = ProposerParts(rows, capacity, verifier.facts.draft_rule, draw, (), pair.draft, {})
    options = LoopOptions(rows, GAMMA, capacity, level or RecordLevel.TOKENS, level is not None)
    loop = Loop(pair.target, proposers.build("draft_model", parts), verifier, lambda _: "", options)
    yield from loop.run(requests)


def requests_of(count: int) -> list[Request]:
    """Sampled requests of equal length."""
    sampling = SamplingParams(temperature=1.0, max_new_tokens=LENGTH, seed=1, ignore_eos=True)
    return [Request(f"arm/case#{i}", (1, 2 + i % 2000, 3), sampling, stream_of(f"case#{i}")) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one round: wall time, processor time of all threads, and of the decoding thread."""

    wall: float
    processor: float
    decoding: float

    @property
    def writing(self) -> float:
        """Processor time of the other threads."""
        return self.processor - self.decoding


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens of some generations, their traces, and the time that they took."""

    tokens: int
    traces: tuple[bytes, ...]
    spent: Spent

    @property
    def stored(self) -> float:
        """Bytes per token."""
        return sum(map(len, self.traces)) / self.tokens


def costs(pair: Pair, size: int, requests: list[Request], rounds: int, whole: int) -> Table:
    """Time and bytes by level; rounds are interleaved, so that other work on the machine falls on all."""
    levels = {OFF: None} | {level.value: level for level in LEVELS if level is not RecordLevel.FULL or size <= whole}
    made: dict[str, list[Amount]] = {name: [] for name in levels}
    for timed in interleaved({name: partial(_timed, pair, requests, level) for name, level in levels.items()}, rounds):
        made[timed.job].append(timed.result)
    return Table(f"V = {size}", tuple(_line(name, made[name], made[OFF], size) for name in levels))


def _line(name: str, own: list[Amount], off: list[Amount], size: int) -> Line:
    def against(column: str) -> MedianInterval:
        return ratio(*([getattr(each.spent, column) for each in amounts] for amounts in (own, off)))

    bare = sum(len(without_rows(trace)) for trace in own[-1].traces if trace) / own[-1].tokens
    most = {"with kept rows": bare + share_of(size) * PLACE_BYTES * size} if name == RecordLevel.TOPK.value else {}
    return Line(
        name,
        {
            "ms per token": 1e3 * median(each.spent.wall / each.tokens for each in own),
            "wall / off": against("wall"),
            "processor / off": against("processor"),
            "decoding thread / off": against("decoding"),
            "writer / decoding thread": median(each.spent.writing / each.spent.decoding for each in own),
            "bytes per token": bare,
            **most,
        },
    )


def without_rows(data: bytes) -> bytes:
    """A trace without its kept rows."""
    trace = decode(data)
    none = empty(trace.header.vocabulary)
    return encode(replace(trace, **{name: none[name] for name in KEPT}))


def _timed(pair: Pair, requests: list[Request], level: RecordLevel | None) -> Amount:
    begun = perf_counter(), process_time(), thread_time()
    made = list(decoded(pair, requests, level))
    ended = perf_counter(), process_time(), thread_time()
    spent = Spent(*(after - before for before, after in zip(begun, ended, strict=True)))
    return Amount(sum(len(each.tokens) for each in made), tuple(each.trace for each in made), spent)


def judged(pair: Pair, size: int, tokens: int) -> Table:
    """A sampled arm at `topk`, recorded and judged; requests are read one by one, as from a store."""
    made = list(decoded(pair, requests_of(-(-tokens // LENGTH)), RecordLevel.TOPK, BATCH))

    def read(index: int) -> RequestRecord:
        each = made[index]
        name = each.request.id
        return RequestRecord(name, name, 0, "chat", decode(each.trace), each.tokens, "", each.finish_reason, 1, True)

    effective = Effective(gamma=GAMMA)
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L3, effective, LazyRequests(len(made), read))
    results = {name: evaluate(load(name), Evidence(arm), {}) for name in CHECKS}
    lines = (Line(name, {"verdict": each.verdict.value, "summary": each.summary}) for name, each in results.items())
    return Table(f"judged at V = {size}", tuple(lines), (_note(made), f"peak memory of the process {peak():.0f} MiB"))


def _note(made: list[Generation]) -> str:
    """What the traces take, with and without their kept rows."""
    tokens, stored = sum(len(each.tokens) for each in made), sum(len(each.trace) for each in made)
    rows, bare = (
        sum(len(decode(each.trace).kept_at) for each in made),
        sum(len(without_rows(each.trace)) for each in made),
    )
    each_row = (stored - bare) / rows if rows else 0.0
    return (
        f"{tokens} tokens, {stored / tokens:.0f} bytes per token, of these {bare / tokens:.0f} without kept rows; "
        f"{rows} kept, {each_row / 1024:.0f} KiB each"
    )


@click.command()
@click.option("--sizes", default=",".join(map(str, VOCABULARIES)), show_default=True, help="Vocabularies, by commas.")
@click.option("--rounds", type=click.IntRange(min=0), default=3, show_default=True, help="0: judge only.")
@click.option("--requests", type=click.IntRange(min=1), default=4, show_default=True, help="Of 64 tokens, per round.")
@click.option("--tokens", type=click.IntRange(min=0), default=20_000, show_default=True, help="To judge; 0: none.")
@click.option(
    "--whole",
    default=32_000,
    show_default=True,
    help="Largest vocabulary for which whole rows are measured; they fill the memory.",
)
@click.option("--write", is_flag=True, help="Write the bytes into docs/evidence.md.")
@click.option("--judge-at", type=click.IntRange(min=2), default=151_936, show_default=True, help="A vocabulary.")
def main(sizes: str, rounds: int, requests: int, tokens: int, judge_at: int, whole: int, write: bool) -> None:
    """Cost of recording by vocabulary, and checks of a long arm."""
    torch.set_num_threads(1)
    tables: list[Table] = []
    for size in map(int, sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            pair = random_pair(Path(folder), size)
            if rounds:
                table = costs(pair, size, requests_of(requests), rounds, whole)
                tables.append(table)
                click.echo(rendered(table) + "\n")
            if tokens and size == judge_at:
                click.echo(rendered(judged(pair, size, tokens)) + "\n")
    if write:
        bytes_by_level = [{"V": table.group.removeprefix("V = "), **_bytes(table)} for table in tables]
        SIZES.write_text(json.dumps(bytes_by_level, indent=1) + "\n")
        put("sizes", sizes_table(bytes_by_level))


KEPT_COLUMN = "topk with kept rows"


def _bytes(table: Table) -> dict[str, float]:
    lines = {line.arm: line.figures for line in table.lines if line.arm != OFF}
    plain = {name: round(float(str(figures["bytes per token"]))) for name, figures in lines.items()}
    return plain | {KEPT_COLUMN: round(float(str(lines[RecordLevel.TOPK.value]["with kept rows"])))}


def sizes_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Bytes per emitted token by vocabulary and level, as Markdown."""
    columns = ("V", *(level.value for level in LEVELS[:3]), KEPT_COLUMN, RecordLevel.FULL.value)
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*head, *(f"| {' | '.join(str(row.get(column, '-')) for column in columns)} |" for row in rows)])
