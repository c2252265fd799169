"""`python -m tests.vllm.overhead`: what recording costs in vLLM, as ratios of interleaved pairs. Asserts nothing.

Two engines with the same settings run in one go: one with both witnesses, raw rows and all numbers, one as installed.
They answer the same requests in turn; which one goes first changes with every pair. Above temperature 0 both are
repaired, for drafts that are judged by old memory cost as chance has it, and requests have seeds, so that both take the
same steps.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

# of the engine's processes, so before vLLM is imported
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1")

import click
from vllm import LLM, SamplingParams

from engine.backends.vllm.options import EXTENSION, SCHEDULER
from engine.backends.vllm.patches import EXPAND

from .arms import NGRAM
from .setting import GAMMA, REFERENCE, prompts

METHODS = {
    "ngram": {"method": "ngram", **NGRAM},
    "draft_model": {
        "method": "draft_model",
        "model": str(REFERENCE / "medium_draft"),
        "draft_sample_method": "probabilistic",
    },
}


def engine(target, method, width, **hooks):
    return LLM(
        model=str(REFERENCE / target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=640,
        max_num_seqs=width,
        kv_cache_memory_bytes=2**28,
        enable_prefix_caching=False,
        speculative_config={"num_speculative_tokens": GAMMA, **METHODS[method]},
        **hooks,
    )


def timed(llm, asked, sampling, recorded):
    """Seconds until the answers are there, and the record of them."""
    began = time.perf_counter()
    llm.generate(asked, sampling, use_tqdm=False)
    if recorded:
        llm.collective_rpc("specaudit_flush")
    return time.perf_counter() - began


@click.command()
@click.option("--target", default="medium", show_default=True, help="A bundled model.")
@click.option("--method", type=click.Choice(tuple(METHODS)), default="draft_model", show_default=True)
@click.option("--rounds", type=click.IntRange(min=3), default=21, show_default=True)
@click.option("--width", type=click.IntRange(min=1), default=8, show_default=True, help="Requests in flight.")
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True)
def main(target, method, rounds, width, tokens, temperature):
    """Time pairs."""
    drawn = temperature > 0
    seed = 20261122 if drawn else None
    sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True, logprobs=0)
    asked = [{"prompt_token_ids": ids} for ids in prompts()[:width]]
    with tempfile.TemporaryDirectory() as home:
        scheduler_log = {"specaudit": {"scheduler": str(Path(home) / "diary"), "script": None}}
        hooks = {"worker_extension_cls": EXTENSION, "scheduler_cls": SCHEDULER, "additional_config": scheduler_log}
        plain = {"worker_extension_cls": "tests.vllm.repairing.Repairing"} if drawn else {}
        on, off = engine(target, method, width, **hooks), engine(target, method, width, **plain)
        on.collective_rpc("specaudit_begin", args=(EXPAND if drawn else None,))
        if drawn:
            off.collective_rpc("specaudit_repair")
        times = {"on": [], "off": []}
        for index in range(rounds + 1):
            spool = Path(home) / f"worker-{index}"
            on.collective_rpc("specaudit_spool", args=(str(spool), True))
            pair = [("on", on), ("off", off)][:: 1 if index % 2 else -1]
            for name, llm in pair:
                times[name].append(timed(llm, asked, sampling, name == "on"))
            size = spool.stat().st_size
            spool.unlink()
        facts = on.collective_rpc("specaudit_facts")[0]
    ratios = sorted(a / b for a, b in zip(times["on"][1:], times["off"][1:], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    document = {
        "target": target,
        "method": method,
        "temperature": temperature,
        "requests": width,
        "pairs": rounds,
        "median_s": {name: round(statistics.median(each[1:]), 4) for name, each in times.items()},
        "median_ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "worker_ms_per_step": round(1e3 * facts["seconds"] / facts["steps"], 3),
        "bytes_per_round": size,
        "problems": facts["problems"],
    }
    click.echo(json.dumps(document, indent=2))


if __name__ == "__main__":
    # vLLM prints to stdout what it does
    sys.stdout.reconfigure(line_buffering=True)
    main()
