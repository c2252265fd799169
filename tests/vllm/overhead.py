"""`python -m tests.vllm.overhead`: what recording costs in vLLM, as ratios of interleaved pairs. Asserts nothing.

Two engines with the same settings run in one go: one with both hooks, recording at a level, one as installed.
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
from engine.backends.vllm.worker_terms import CallTerms
from engine.core.types import Protocol, RecordLevel, Request
from engine.core.types import SamplingParams as OwnSampling

from .arms import NGRAM
from .setting import GAMMA, REFERENCE, prompts
from .wide import write_model

METHODS = {
    "ngram": {"method": "ngram", **NGRAM},
    "draft_model": {
        "method": "draft_model",
        "model": str(REFERENCE / "medium_draft"),
        "draft_sample_method": "probabilistic",
    },
}


def engine(folder, method, width, **hooks):
    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
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


def terms(kept, asked, sampling, index):
    """What the worker must know to reduce rows; nothing at `full`. vLLM numbers its requests."""
    ours = OwnSampling(temperature=sampling.temperature, max_new_tokens=sampling.max_tokens, ignore_eos=True)
    names = map(str, range(index * len(asked), (index + 1) * len(asked)))
    named = {
        name: Request(name, tuple(each["prompt_token_ids"]), ours, 0) for name, each in zip(names, asked, strict=True)
    }
    return kept.message(named).get("terms")


@click.command()
@click.option("--target", default="medium", show_default=True, help="A bundled model.")
@click.option("--method", type=click.Choice(tuple(METHODS)), default="draft_model", show_default=True)
@click.option("--rounds", type=click.IntRange(min=3), default=21, show_default=True)
@click.option("--width", type=click.IntRange(min=1), default=8, show_default=True, help="Requests in flight.")
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True)
@click.option("--record", type=click.Choice(["scalars", "topk", "full"]), default="full", show_default=True)
@click.option("--vocabulary", type=int, help="A random model with so many tokens instead of a bundled one.")
def main(target, method, rounds, width, tokens, temperature, record, vocabulary):
    """Time pairs."""
    drawn = temperature > 0
    seed = 20261122 if drawn else None
    sampling = SamplingParams(
        temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False
    )
    asked = [{"prompt_token_ids": ids} for ids in prompts()[:width]]
    kept = CallTerms(RecordLevel(record), Protocol.CHAIN, vocabulary or 2048, drawn=method != "ngram")
    with tempfile.TemporaryDirectory() as home:
        folder = write_model(Path(home) / "wide", vocabulary) if vocabulary else REFERENCE / target
        scheduler_log = {"specaudit": {"scheduler": str(Path(home) / "diary"), "script": None}}
        hooks = {"worker_extension_cls": EXTENSION, "scheduler_cls": SCHEDULER, "additional_config": scheduler_log}
        plain = {"worker_extension_cls": "tests.vllm.repairing.Repairing"} if drawn else {}
        on, off = engine(folder, method, width, **hooks), engine(folder, method, width, **plain)
        on.collective_rpc("specaudit_begin", args=(EXPAND if drawn else None,))
        if drawn:
            off.collective_rpc("specaudit_repair")
        times = {"on": [], "off": []}
        for index in range(rounds + 1):
            spool = Path(home) / f"worker-{index}"
            on.collective_rpc("specaudit_spool", args=(str(spool), True, terms(kept, asked, sampling, index)))
            pair = [("on", on), ("off", off)][:: 1 if index % 2 else -1]
            for name, llm in pair:
                times[name].append(timed(llm, asked, sampling, name == "on"))
            size = spool.stat().st_size
            spool.unlink()
        facts = on.collective_rpc("specaudit_facts")[0]
    ratios = sorted(a / b for a, b in zip(times["on"][1:], times["off"][1:], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    document = {
        "target": f"random, {vocabulary} tokens" if vocabulary else target,
        "record": record,
        "method": method,
        "temperature": temperature,
        "requests": width,
        "pairs": rounds,
        "median_s": {name: round(statistics.median(each[1:]), 4) for name, each in times.items()},
        "median_ratio": round(statistics.median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "worker_ms_per_step": round(1e3 * facts["seconds"] / facts["steps"], 3),
        "bytes_per_token": round(size / (width * tokens)),
        "problems": facts["problems"],
    }
    click.echo(json.dumps(document, indent=2))


if __name__ == "__main__":
    # vLLM prints to stdout what it does
    sys.stdout.reconfigure(line_buffering=True)
    main()
