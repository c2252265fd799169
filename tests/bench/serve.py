"""`python -m tests.bench serve`: tokens per second of `audit serve` beside a vLLM server, plain and with a draft model.

All servers run at once and idle while another is asked: one round asks each with the same token ids, greedy, eight
requests at a time, each answer as long as the others (`ignore_eos`). Both sides get the same number of threads, dtype,
rows and gamma. Without vLLM's interpreter only our own servers run. No time is asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import httpx2
import torch

from tests.bench.figures import Line, Runs, Table, measure, ratio, reported
from tests.bench.setting import Setting, bundled_pair, folder_of, requests_of

ROWS = 8
PATIENCE_S = 600
MODEL = "model"
VLLM = ".venv-vllm/bin/python"


@dataclass(frozen=True)
class Own:
    """How a server of ours runs: with a draft model, with a store, and the target's numerics."""

    draft: bool = False
    recorded: bool = False
    mode: str = "ordered"


OURS = {
    "ours plain": Own(),
    "ours draft": Own(draft=True),
    "ours draft, recorded": Own(draft=True, recorded=True),
    "ours plain, tiled": Own(mode="tiled"),
    "ours draft, tiled": Own(draft=True, mode="tiled"),
}
"""In both modes speculation changes no bit; `ordered` is the default."""
THEIRS = {"vllm plain": False, "vllm draft": True}

Answers = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Served:
    """A server that answers at a port."""

    process: subprocess.Popen[bytes]
    port: int

    def ready(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ours(setting: Setting, port: int, threads: int, own: Own, folder: Path) -> list[str]:
    drafting = ("--draft", setting.draft, "--gamma", str(setting.gamma)) if own.draft else ()
    kept = ("--store", str(folder / "served.db")) if own.recorded else ("--no-store",)
    place = ("--port", str(port), "--name", MODEL, "--no-token", "--rows", str(ROWS), "--threads", str(threads))
    numerics = ("--numerics", own.mode)
    return [sys.executable, "-m", "audit", "serve", setting.target, *drafting, *kept, *place, *numerics]


def theirs(python: str, setting: Setting, port: int, *, draft: bool) -> list[str]:
    shape = ("--dtype", setting.dtype, "--max-model-len", "1024", "--max-num-seqs", str(ROWS), "--enforce-eager")
    drafting = {
        "model": str(folder_of(setting.draft)),
        "num_speculative_tokens": setting.gamma,
        "method": "draft_model",
    }
    more = ("--speculative-config", json.dumps(drafting)) if draft else ()
    place = ("--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL)
    model = ("--model", str(folder_of(setting.target)))
    return [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *model,
        *place,
        *shape,
        "--no-enable-prefix-caching",
        *more,
    ]


@contextlib.contextmanager
def started(command: Sequence[str], port: int, log: Path, threads: int) -> Iterator[Served]:
    """The server of a command, in a session of its own."""
    more = {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={**os.environ, **more}, stdout=out, stderr=out, start_new_session=True)
        try:
            yield Served(process, port)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)


def wait_for(served: Served, name: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not served.ready():
        if served.process.poll() is not None or time.monotonic() > end:
            raise click.ClickException(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(1)


def job_of(served: Served, prompts: Sequence[Sequence[int]], length: int) -> Callable[[], Answers]:
    """Asks for an answer to each prompt, eight at a time; their token ids in order."""
    url = f"http://127.0.0.1:{served.port}/v1/completions"

    async def run() -> Answers:
        found: dict[int, tuple[int, ...]] = {}
        left = iter(enumerate(prompts))

        async def work(client: httpx2.AsyncClient) -> None:
            for number, prompt in left:
                body = {"model": MODEL, "prompt": list(prompt), "max_tokens": length, "temperature": 0}
                answer = await client.post(url, json=body | {"ignore_eos": True, "return_token_ids": True})
                answer.raise_for_status()
                found[number] = tuple(answer.json()["choices"][0]["token_ids"])

        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            await asyncio.gather(*(work(client) for _ in range(ROWS)))
        return tuple(found[number] for number in sorted(found))

    return lambda: asyncio.run(run())


def plain_of(arm: str) -> str:
    """The arm without drafts of the same side and numerics."""
    return f"{arm.partition(' ')[0]} plain{', tiled' * arm.endswith(', tiled')}"


def lines(runs: Runs) -> Iterator[Line]:
    rates = {arm: runs.rates(arm, lambda found: sum(map(len, found))) for arm in runs.runs}
    reference = runs.first("ours plain")
    for arm, own in rates.items():
        method = arm.partition(" ")[2].partition(",")[0]
        other = rates.get(f"vllm {method}")
        equal = sum(a == b for a, b in zip(runs.first(arm), reference, strict=True))
        yield Line(
            arm,
            {
                "tokens/s": ratio(own, [1.0] * len(own)),
                "x vllm, same method": ratio(own, other) if other and arm.startswith("ours") else None,
                "x own plain": ratio(own, rates[plain_of(arm)]),
                "answers as ours plain": f"{equal}/{len(reference)}",
            },
        )


def measured(setting: Setting, group: str, threads: int, vllm: str | None, folder: Path) -> Table:
    prompts = [each.prompt for each in requests_of(setting, group)]
    commands = {}
    for arm, own in OURS.items():
        port = free_port()
        commands[arm] = (ours(setting, port, threads, own, folder), port)
    for arm, draft in THEIRS.items() if vllm else ():
        port = free_port()
        commands[arm] = (theirs(vllm, setting, port, draft=draft), port)
    with ExitStack() as stack:
        servers = {}
        for arm, (command, port) in commands.items():
            log = folder / f"{arm.replace(' ', '-')}.log"
            servers[arm] = stack.enter_context(started(command, port, log, threads))
            # one after another: starting takes all cores
            wait_for(servers[arm], arm, log)
        jobs = {arm: job_of(served, prompts, setting.length) for arm, served in servers.items()}
        runs = measure(jobs, setting)
    notes = () if vllm else (f"no vLLM: {VLLM} is not there (make venv-vllm)",)
    return Table(group, tuple(lines(runs)), notes)


@click.command()
@click.option("--quick", is_flag=True, help="One tiny round: does it run at all?")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), default="build/bench/serve.json")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True)
@click.option("--prompts", type=click.IntRange(min=1), default=8, show_default=True, help="Per domain.")
@click.option("--tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Of every answer.")
@click.option("--gamma", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of each server.")
@click.option("--group", default="templated", show_default=True, help="The domain of the prompts.")
@click.option("--target", help="bundled:NAME or a folder.")
@click.option("--draft", help="bundled:NAME or a folder.")
@click.option("--vllm", default=VLLM, show_default=True, help="The interpreter that has vLLM.")
def main(quick, out, rounds, prompts, tokens, gamma, threads, group, target, draft, vllm) -> None:
    """Measure the servers."""
    torch.set_num_threads(1)
    pair = bundled_pair()
    setting = Setting(target or pair[0], draft or pair[1], rounds, prompts, tokens, gamma, quick=quick)
    if quick:
        setting = dataclasses.replace(setting, rounds=1, prompts=1, length=6)
    found = str(Path(vllm).absolute()) if Path(vllm).is_file() else None
    click.echo(
        f"serve: {setting.target} with {setting.draft}, {setting.rounds} rounds, {ROWS} at a time, {threads} threads"
    )
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        table = measured(setting, group, threads, found, Path(folder))
    reported(table, {"bench": "serve", "setting": setting, "threads": threads, "load": before}, out)
