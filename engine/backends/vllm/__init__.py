"""vLLM as a backend: a running engine, recorded step by step by two hooks inside it.

An engine runs in its own processes (`driver`, started by `process`). A hook in its worker (`hooks.worker`) and one in
its scheduler (`hooks.scheduler`) record every step; their records are used (`to_record`) only if they match each other
and vLLM's public outputs and metrics (`reconcile`). The hooks wrap internals of vLLM, so `compat` first checks that
these are the expected ones. The package imports without vLLM and needs it at an arm's first request.
"""

from engine.backends.catalogue import READ_CHOICES, BackendKind, opener
from engine.backends.vllm.options import DECLARED, outside
from engine.backends.vllm.structured import grammar_problem

KIND = BackendKind(
    open=opener("engine.backends.vllm.backend:VllmBackend"),
    evidence=DECLARED,
    proposers=("ngram", "suffix", "draft_model", "medusa", "eagle", "eagle3", "mtp", "dflash", "custom_class"),
    rules=("greedy", "chain", "block"),
    options="engine-vllm",
    tool_choices=READ_CHOICES,
    asked=grammar_problem,
    outside=outside,
    cancels=True,
)
