"""`python -m tests.vllm.serve JOB OUT`: one vLLM engine in a process of its own, from a job in JSON to files.

The job: `engine` (arguments of `LLM`), `prompts` (token ids), `recorded` (how many of them run first, alone, with the
drafter's forwards kept), `max_tokens`. Written: OUT/outputs.json and OUT/forwards-N.pt.
"""

import json
import os
import sys
from pathlib import Path

# of the engine's processes, so before vLLM is imported
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", VLLM_NO_USAGE_STATS="1"
)

import vllm
from vllm import LLM, SamplingParams

SETTINGS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 640,
    "max_num_seqs": 4,
    "enable_prefix_caching": False,
}
SPECULATING = {"worker_extension_cls": "tests.vllm.probe.DrafterProbe", "per_request_spec_decode_metrics": "detailed"}


def main(job, out):
    speculative = job["engine"].get("speculative_config") is not None
    engine = LLM(**SETTINGS, **(SPECULATING if speculative else {}), **job["engine"])
    sampling = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], logprobs=1)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    said, module = [], None
    if speculative:
        (module,) = engine.collective_rpc("keep_forwards")
    for i, prompt in enumerate(prompts[: job["recorded"]]):
        said += engine.generate([prompt], sampling, use_tqdm=False)
        if speculative:
            engine.collective_rpc("write_forwards", args=(str(out / f"forwards-{i}.pt"),))
    said += engine.generate(prompts[job["recorded"] :], sampling, use_tqdm=False)
    outputs = [output(each.outputs[0]) for each in said]
    document = {"vllm": vllm.__version__, "module": module, "outputs": outputs}
    (out / "outputs.json").write_text(json.dumps(document), encoding="utf-8")


def output(completion):
    ids, metrics = list(completion.token_ids), completion.spec_decode_metrics
    steps = {"accepted": list(metrics.per_step_accepted), "drafted": list(metrics.per_step_drafted)} if metrics else {}
    logprobs = [row[token].logprob for row, token in zip(completion.logprobs, ids, strict=True)]
    return {"tokens": ids, "logprobs": logprobs, **steps}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
