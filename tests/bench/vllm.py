"""`python -m tests.bench vllm`: our engine beside vLLM's offline engine, by method, in batches of 1 and 8.

Same machine, folders, token ids, gamma and dtype, one thread each, greedy, every answer equally long (`ignore_eos`).
Each method of vLLM has an `LLM` in a process of its own, which contains the engine's core and idles while another arm
runs; both sides time the calls that generate, so no pipe counts. The n-grams differ: vLLM takes the first match of a
suffix, `ngram` the latest. Without vLLM's interpreter only our own arms run. No time is asserted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
import torch

from engine.core.types import Request
from engine.models.numerics import REGISTRY
from tests.bench.engines import LONGEST_NGRAM, METHODS, Outputs
from tests.bench.figures import Line, Runs, Table, measure, ratio, reported
from tests.bench.serve import VLLM
from tests.bench.setting import Engine, Pair, Setting, bundled_pair, folder_of, lean_pair, requests_of

ROOT = Path(__file__).parents[2]
BATCHES = (1, 8)
CONTEXT = 1024
CACHE_BYTES = 2**28


@dataclass(frozen=True)
class TimedOutputs:
    """The answers of one arm in the order of the prompts, and the seconds in which its engine made them."""

    tokens: Outputs
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.seconds


@dataclass(frozen=True)
class OfflineVllm:
    """vLLM's process: it answers one line of JSON with one."""

    process: subprocess.Popen[str]
    log: Path

    def ask(self, question: dict[str, Any]) -> Any:
        with contextlib.suppress(BrokenPipeError):
            self._pipe(self.process.stdin).write(json.dumps(question) + "\n")
            self._pipe(self.process.stdin).flush()
        return self.read()

    def read(self) -> Any:
        line = self._pipe(self.process.stdout).readline()
        if not line:
            raise click.ClickException(f"vLLM's process ended:\n{self.log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    @staticmethod
    def _pipe(found: IO[str] | None) -> IO[str]:
        assert found is not None
        return found


def options_of(setting: Setting, method: str, *, eager: bool) -> dict[str, Any]:
    """The options of `vllm.LLM` for one method."""
    methods = {
        "plain": None,
        "draft_model": {"model": str(folder_of(setting.draft)), "num_speculative_tokens": setting.gamma},
        "ngram": {"prompt_lookup_max": LONGEST_NGRAM, "prompt_lookup_min": 1, "num_speculative_tokens": setting.gamma},
    }
    drafting = methods[method]
    return {
        "model": str(folder_of(setting.target)),
        "skip_tokenizer_init": True,
        "dtype": setting.dtype,
        "enforce_eager": eager,
        "max_model_len": CONTEXT,
        "max_num_seqs": max(BATCHES),
        "kv_cache_memory_bytes": CACHE_BYTES,
        "enable_prefix_caching": False,
        "speculative_config": drafting and {"method": method, **drafting},
    }


@contextlib.contextmanager
def started(python: str, options: dict[str, Any], log: Path) -> Iterator[OfflineVllm]:
    """vLLM with these options, ready to answer, in a session of its own, which ends with the block."""
    more = {
        "PYTHONPATH": str(ROOT),
        # the engine's core runs in the process of the caller: no messages between processes
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        # the pool in which vLLM looks up n-grams
        "NUMBA_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [python, "-m", "tests.bench.vllm_child", json.dumps(options)]
    pipe = subprocess.PIPE
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **more},
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        found = OfflineVllm(process, log)
        ready = found.read()
        if ready["threads"] != 1:
            raise click.ClickException(f"vLLM computes with {ready['threads']} threads, not with one")
        yield found
    finally:
        # compilers may remain in the group after its leader has ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def endless(requests: Sequence[Request]) -> list[Request]:
    """The same requests, whose answers do not end before their full length."""
    return [
        dataclasses.replace(each, sampling=dataclasses.replace(each.sampling, ignore_eos=True)) for each in requests
    ]


def own_job(
    pair: Pair, setting: Setting, method: str, rows: int, requests: list[Request]
) -> Callable[[], TimedOutputs]:
    """Our engine's answers; as ever, each run has an engine of its own."""
    chosen = (None, 0) if method == "plain" else (method, setting.gamma)
    engine = Engine(pair.target, pair.draft, *chosen, rows=rows)

    def job() -> TimedOutputs:
        began = time.perf_counter()
        generations = engine.run(requests)
        seconds = time.perf_counter() - began
        found = {each.request.id: tuple(each.tokens) for each in generations}
        return TimedOutputs(tuple(found[each.id] for each in requests), seconds)

    return job


def vllm_job(llm: OfflineVllm, rows: int, requests: Sequence[Request]) -> Callable[[], TimedOutputs]:
    """vLLM's answers to the same token ids, as long as ours."""
    length = requests[0].sampling.max_new_tokens
    question = {"rows": rows, "prompts": [list(each.prompt) for each in requests], "tokens": length}

    def job() -> TimedOutputs:
        found = llm.ask(question)
        return TimedOutputs(tuple(map(tuple, found["tokens"])), found["seconds"])

    return job


def lines(runs: Runs) -> Iterator[Line]:
    rates = {arm: [each.result.rate for each in found] for arm, found in runs.runs.items()}
    reference = runs.first("ours plain, batch 1").tokens
    for arm, own in rates.items():
        side, _, rest = arm.partition(" ")
        plain = f"{side} plain,{rest.partition(',')[2]}"
        other = rates.get(f"vllm {rest}")
        equal = sum(a == b for a, b in zip(runs.first(arm).tokens, reference, strict=True))
        yield Line(
            arm,
            {
                "tokens/s": ratio(own, [1.0] * len(own)),
                "x vllm, same method": ratio(own, other) if other and side == "ours" else None,
                "x own plain": ratio(own, rates[plain]),
                "answers equal": f"{equal}/{len(reference)}",
            },
        )


def measured(setting: Setting, group: str, vllm: str | None, folder: Path, *, eager: bool) -> Table:
    """One group's arms side by side; with `vllm`, an interpreter, also vLLM's."""
    requests = endless(requests_of(setting, group))
    pair = lean_pair(setting)
    jobs: dict[str, Callable[[], TimedOutputs]] = {}
    with ExitStack() as stack:
        engines = {}
        for method in METHODS if vllm else ():
            log = folder / f"{method}.log"
            # one after another: starting takes all cores
            engines[method] = stack.enter_context(started(vllm, options_of(setting, method, eager=eager), log))
        for rows in BATCHES:
            for method in METHODS:
                arm = f"{method}, batch {rows}"
                jobs[f"ours {arm}"] = own_job(pair, setting, method, rows, requests)
                if engines:
                    jobs[f"vllm {arm}"] = vllm_job(engines[method], rows, requests)
        runs = measure(jobs, setting)
    notes = () if vllm else (f"no vLLM: {VLLM} is not there (make venv-vllm)",)
    return Table(group, tuple(lines(runs)), notes)


@click.command()
@click.option("--quick", is_flag=True, help="One tiny round: does it run at all?")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), default="build/bench/vllm.json")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--prompts", type=click.IntRange(min=1), default=4, show_default=True, help="Per domain.")
@click.option("--tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Of every answer.")
@click.option("--gamma", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--group", default="templated", show_default=True, help="The domain of the prompts.")
@click.option("--target", help="bundled:NAME or a folder.")
@click.option("--draft", help="bundled:NAME or a folder.")
@click.option(
    "--mode", type=click.Choice(tuple(REGISTRY)), default=Setting.mode, show_default=True, help="Our target's."
)
@click.option("--vllm", default=VLLM, show_default=True, help="The interpreter that has vLLM.")
@click.option("--eager/--compiled", default=False, show_default=True, help="Of vLLM: run operations as they come.")
def main(quick, out, rounds, prompts, tokens, gamma, group, target, draft, mode, vllm, eager) -> None:
    """Measure both engines."""
    torch.set_num_threads(1)
    pair = bundled_pair()
    setting = Setting(target or pair[0], draft or pair[1], rounds, prompts, tokens, gamma, quick=quick, mode=mode)
    if quick:
        setting = dataclasses.replace(setting, rounds=1, prompts=1, length=6)
    found = str(Path(vllm).absolute()) if Path(vllm).is_file() else None
    way = "eager" if eager else "compiled"
    click.echo(
        f"vllm: {setting.target} ({mode}) with {setting.draft}, {setting.rounds} rounds, vLLM {way}, one thread each"
    )
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        table = measured(setting, group, found, Path(folder), eager=eager)
    reported(table, {"bench": "vllm", "setting": setting, "eager": eager, "load": before}, out)
