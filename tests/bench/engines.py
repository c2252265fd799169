"""Our engine against transformers: same weights, prompts, dtype, threads, tokens and gamma, greedy, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.core.types import Request
from engine.models.loading import DTYPES
from tests.bench.figures import Line, Runs, Table, measure, ratio
from tests.bench.setting import Engine, Setting, folder_of, lean_pair, requests_of

Outputs = tuple[tuple[int, ...], ...]
METHODS = ("plain", "draft_model", "ngram")
LONGEST_NGRAM = 4
"""Both sides look up suffixes of at most four tokens."""


@dataclass(frozen=True)
class Transformers:
    """`generate` of unmodified models."""

    target: Any
    draft: Any
    gamma: int

    def outputs(self, method: str, requests: Sequence[Request]) -> Outputs:
        options = {
            "plain": {},
            "draft_model": {"assistant_model": self.draft},
            "ngram": {"prompt_lookup_num_tokens": self.gamma, "max_matching_ngram_size": LONGEST_NGRAM},
        }[method]
        return tuple(self._output(request, options) for request in requests)

    @torch.inference_mode()
    def _output(self, request: Request, options: dict[str, Any]) -> tuple[int, ...]:
        prompt = torch.tensor([request.prompt], device=self.target.device)
        found = self.target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.sampling.max_new_tokens,
            do_sample=False,
            **options,
        )
        return tuple(found[0, len(request.prompt) :].tolist())


def transformers_pair(setting: Setting) -> Transformers:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    models = []
    for source, dtype in ((setting.target, setting.dtype), (setting.draft, setting.draft_dtype)):
        model = AutoModelForCausalLM.from_pretrained(folder_of(source), dtype=DTYPES[dtype], local_files_only=True)
        models.append(model.eval().to(setting.device))
    target, draft = models
    draft_constantly(draft, setting.gamma)
    return Transformers(target, draft, setting.gamma)


def draft_constantly(draft: Any, gamma: int) -> None:
    """Make a draft model of transformers draft `gamma` tokens each time, however sure it is."""
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0


def run(setting: Setting) -> Iterator[Table]:
    pair = lean_pair(setting)
    target, draft = pair.target, pair.draft
    theirs = transformers_pair(setting)
    for group in setting.chosen("templated", "copy", "code"):
        requests = requests_of(setting, group)
        jobs: dict[str, Callable[[], Outputs]] = {}
        for method in METHODS:
            jobs[f"ours {method}"] = _ours(target, draft, method, setting.gamma, requests)
            jobs[f"transformers {method}"] = _theirs(theirs, method, requests)
        yield Table(group, tuple(_lines(measure(jobs, setting), len(requests))))


def _ours(target: Any, draft: Any, method: str, gamma: int, requests: list[Request]) -> Callable[[], Outputs]:
    chosen = (None, 0) if method == "plain" else (method, gamma)
    engine = Engine(target, draft, *chosen)
    order = [each.id for each in requests]

    def job() -> Outputs:
        found = {each.request.id: each.tokens for each in engine.run(requests)}
        return tuple(found[name] for name in order)

    return job


def _theirs(pair: Transformers, method: str, requests: list[Request]) -> Callable[[], Outputs]:
    return lambda: pair.outputs(method, requests)


def _lines(runs: Runs, prompts: int) -> Iterator[Line]:
    reference = runs.first("transformers plain")
    rates = {arm: runs.rates(arm, lambda found: sum(len(each) for each in found)) for arm in runs.runs}
    for arm, own in rates.items():
        side, _, method = arm.partition(" ")
        equal = sum(a == b for a, b in zip(runs.first(arm), reference, strict=True))
        yield Line(
            arm,
            {
                "tokens/s": ratio(own, [1.0] * len(own)),
                "x own plain": ratio(own, rates[f"{side} plain"]) if method != "plain" else None,
                "x transformers, same method": ratio(own, rates[f"transformers {method}"]) if side == "ours" else None,
                "x transformers plain": ratio(own, rates["transformers plain"]),
                "outputs equal": f"{equal}/{prompts}",
            },
        )
