"""The model `specaudit` of lm-evaluation-harness: `--model specaudit --model_args model=SOURCE,draft=SOURCE`.

Generation runs through speculation. Log-likelihoods are the target's own, which reads the given text alone; their
records are those of an arm of their own. The arguments of each request get one more entry, `audit`, with the names of
its records, and the harness writes it into its samples; its own cache of responses is keyed by it, so it never hits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import lm_eval.models  # noqa: F401  # the harness's own models, which it leaves out once it knows another
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from audit.errors import UserError
from audit.serve.evaluations.recorded_model import RecordedAnswer, RecordedScore, recorded_model

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

PASSED: Final = ("top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed")
"""Parameters of generation that OpenAI's API or vLLM call by the same names."""
READ: Final = ("until", "max_gen_toks", "do_sample", "temperature")


@register_model("specaudit")
class SpecauditLM(TemplateLM):  # type: ignore[misc]  # the environment of the types has no lm_eval
    """A model over the engine of `audit serve`."""

    def __init__(self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **options: Any) -> None:
        """Open the model with the options of `audit serve`; `rows` is the size of its batch.

        Raises:
            UserError: a wrong option.
        """
        super().__init__()
        del batch_size, max_batch_size
        if device not in (None, "cpu"):
            raise UserError(f"device={device}: write the device of a model into a suite, and serve its arm")
        self.recorded = recorded_model(options)

    def close(self) -> None:
        """Close the run; the end of the process does it too."""
        self.recorded.close()

    def get_model_info(self) -> dict[str, Any]:
        """Facts for the configuration in the harness's results."""
        return {"audit": dict(self.recorded.facts)}

    @property
    def eot_token_id(self) -> int:
        """The token that stands for an empty context."""
        return self.recorded.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_more: Any) -> list[int]:
        """The tokens of a text."""
        del add_special_tokens
        return list(self.recorded.encode(string))

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers, through speculation."""
        del disable_tqdm

        async def answers() -> list[RecordedAnswer]:
            return await asyncio.gather(*map(self._answer, requests))

        # the caller may be inside an event loop, as in a notebook
        with ThreadPoolExecutor(1) as own:
            result = own.submit(asyncio.run, answers()).result()
        for request, answer in zip(requests, result, strict=True):
            _name(request, answer.record)
        return [answer.document["choices"][0]["text"] for answer in result]

    async def _answer(self, request: Instance) -> RecordedAnswer:
        context, given = request.args[:2]
        asked = normalize_gen_kwargs(given)
        unknown = [name for name in asked if name not in (*PASSED, *READ)]
        if unknown:
            raise UserError(f"task {request.task_name}: generation_kwargs: {unknown[0]} is not supported")
        length = min(asked["max_gen_toks"], self.recorded.context - 1)
        body = {
            **{name: asked[name] for name in PASSED if name in asked},
            "prompt": self._cut(self.tok_encode(context) or [self.eot_token_id], length),
            "max_tokens": length,
            "temperature": asked.get("temperature", 1.0 if asked["do_sample"] else 0.0),
            "stop": [stop for stop in asked["until"] if stop],
        }
        return await self.recorded.answer(body, _domain(request), chat=False)

    def _cut(self, prompt: list[int], length: int) -> list[int]:
        """The end of a prompt that leaves room for an answer, as in the harness's own models."""
        return prompt[-(self.recorded.context - length) :]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding gives it; by the target alone."""
        del disable_tqdm
        return [self._likelihood(request) for request in requests]

    def _likelihood(self, request: Instance) -> tuple[float, bool]:
        context, continuation = request.args[:2]
        if context:
            before, after = self._encode_pair(context, continuation)
        else:
            before, after = [self.eot_token_id], self.tok_encode(continuation)
        before = before[-max(1, self.recorded.context - len(after)) :]
        score = self._scored(request, before, after)
        return score.logprob, score.greedy

    def _scored(self, request: Instance, before: Sequence[int], after: Sequence[int]) -> RecordedScore:
        score = self.recorded.score(before, after, _domain(request))
        _name(request, score.record)
        return score

    def _loglikelihood_tokens(self, requests: Any, **_more: Any) -> list[tuple[float, bool]]:
        """Scores without records of requests are none of ours."""
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each whole text, in windows as long as the context; by the target alone."""
        del disable_tqdm
        return [self._rolling(request) for request in requests]

    def _rolling(self, request: Instance) -> float:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(request.args[0]),
            prefix_token=self.eot_token_id,
            max_seq_len=self.recorded.context - 1,
            context_len=1,
        )
        return sum(self._scored(request, *make_disjoint_window(window)).logprob for window in windows)


def _domain(request: Instance) -> str:
    return str(request.task_name)


def _name(request: Instance, record: Mapping[str, str]) -> None:
    """Add the name of a record to a request, which lists one for each response."""
    last = request.args[-1]
    if isinstance(last, Mapping) and set(last) == {"audit"}:
        last["audit"].append(dict(record))
    else:
        request.arguments = (*request.args, {"audit": [dict(record)]})
