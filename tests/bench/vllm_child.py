"""One `vllm.LLM` in this process, which answers lines of JSON; `tests.bench.vllm` starts it with vLLM's interpreter.

The one argument is the JSON of the options of `LLM`. The first line on stdout states vLLM's version and the threads of
torch. Each line on stdin, `{"rows": 1, "prompts": [[ids]], "tokens": n}`, gets one answer, `{"tokens": [[ids]],
"seconds": s}`: greedy, n tokens for every prompt, timed round the calls of `generate` only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO


def answer(llm: Any, sampling: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens of every prompt, in order, and seconds; with one row each prompt has a call of its own."""
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    calls = [[prompt] for prompt in prompts] if asked["rows"] == 1 else [prompts]
    # as tests.bench.figures runs our arms
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    found = [output for call in calls for output in llm.generate(call, sampling, use_tqdm=False)]
    seconds = time.perf_counter() - began
    gc.enable()
    return {"tokens": [list(each.outputs[0].token_ids) for each in found], "seconds": seconds}


def serve(options: Mapping[str, Any], answers: TextIO) -> None:
    """Load the engine, then answer until stdin ends."""
    import torch
    import vllm

    llm = vllm.LLM(**options)
    ready = {"version": vllm.__version__, "threads": torch.get_num_threads()}
    answers.write(json.dumps(ready) + "\n")
    answers.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = vllm.SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False)
        answers.write(json.dumps(answer(llm, sampling, asked)) + "\n")
        answers.flush()


if __name__ == "__main__":
    # vLLM prints to stdout, so answers keep the descriptor and all else goes to stderr
    kept = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(kept, "w") as out:
        serve(json.loads(sys.argv[1]), out)
