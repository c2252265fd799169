"""`python -m engine.backends.mlx_lm.driver`: one engine, with requests on stdin and answers on stdout.

Requests run one after another by `mlx_lm.stream_generate`, as a program that uses the library would run them. What is
observed comes through the library's own openings: its answers, the sampler and the logits processors that a caller
gives, and the arguments that its running generator holds. Imports only mlx, mlx_lm, numpy and blake3.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.backends.installed import installed, versions
from engine.backends.process.driver import EngineDriver, microseconds, run_driver

PACKAGES: Final = ("mlx", "mlx-cpu", "numpy", "transformers", "tokenizers")
ARGUMENTS: Final = ("max_tokens", "num_draft_tokens", "prefill_step_size")
"""Arguments of the running generator that are reported."""


@dataclass(slots=True)
class SamplerLog:
    """The calls of the sampler, and the raw rows before them if logits processors run; drafts' calls included."""

    calls: list[Any] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)

    def sampler(self, chosen: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The sampler `chosen`, whose results are kept."""

        def sample(logprobs: Any) -> Any:
            tokens = chosen(logprobs)
            self.calls.append(tokens)
            return tokens

        return sample

    def tap(self, _tokens: Any, logits: Any) -> Any:
        """The first processor: keeps the row as the model gave it. Later processors write into theirs, so it copies."""
        self.rows.append(logits + 0)
        return logits


@dataclass(slots=True)
class SeenTokens:
    """One request by token: the engine's word on drafts, and the sampler's calls since the token before."""

    tokens: list[int] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    calls: list[list[list[int]]] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    arguments: dict[str, int] = field(default_factory=dict)
    finish: str | None = None


class MlxDriver(EngineDriver):
    """The loop of one engine."""

    _target: Any = None
    _draft: Any = None
    _tokenizer: Any = None

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Load the models; the engine's facts."""
        import mlx.core as mx
        import mlx_lm
        from mlx_lm.utils import load_tokenizer

        self._target, target = _loaded(job["target"])
        self._draft, draft = (None, None) if job["draft"] is None else _loaded(job["draft"])
        self._tokenizer = load_tokenizer(Path(job["target"]["folder"]))
        return {
            "installed": installed(mlx_lm.__file__),
            "packages": versions(PACKAGES),
            "device": str(mx.default_device()),
            "weights": {"target": target, "draft": draft},
        }

    def options(self, speculative: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as a generator that has not begun holds them."""
        import mlx.core as mx

        library, prompt = _library(), mx.array([0], mx.uint32)
        if self._draft is None:
            generator = library.generate_step(prompt, self._target, **speculative)
        else:
            generator = library.speculative_generate_step(prompt, self._target, self._draft, **speculative)
        held = generator.gi_frame.f_locals
        way = "none" if held.get("draft_model") is None else "draft_model"
        return {**{name: held.get(name) for name in speculative}, "way": way}

    def answer_one(self, request: Mapping[str, Any]) -> None:
        """Generate, and say what was seen."""
        begun = time.perf_counter()
        seen = self._seen(request)
        self.say(
            {"rows": np.stack(seen.rows)} if seen.rows else None,
            op="output",
            id=request["id"],
            tokens=seen.tokens,
            from_draft=seen.from_draft,
            calls=seen.calls,
            text="".join(seen.text),
            finish=seen.finish,
            arguments=seen.arguments,
            latency_us=microseconds(begun),
        )

    def _seen(self, request: Mapping[str, Any]) -> SeenTokens:
        import mlx.core as mx
        from mlx_lm.sample_utils import make_sampler

        asked, log, seen = request["sampling"], SamplerLog(), SeenTokens()
        processors = _processors(asked["processors"], log)
        self._tokenizer.eos_token_ids = asked["ends"]
        mx.random.seed(asked["seed"])
        stream = _library().stream_generate(
            self._target,
            self._tokenizer,
            list(request["prompt"]),
            max_tokens=asked["max_tokens"],
            draft_model=self._draft,
            sampler=log.sampler(make_sampler(**asked["sampler"])),
            logits_processors=processors or None,
            **request["arguments"],
        )
        waiting: list[Any] = []
        for response in stream:
            if not seen.tokens:
                seen.arguments = _held(stream)
            self._read(response, log, seen)
            if log.rows:
                waiting = _deciding(waiting, log, drafted=self._draft is not None)
            if request["rows"]:
                row = waiting.pop(0) if processors else response.logprobs
                seen.rows.append(np.array(row.astype(mx.float32)).reshape(-1))
        return seen

    def _read(self, response: Any, log: SamplerLog, seen: SeenTokens) -> None:
        seen.tokens.append(int(response.token))
        seen.from_draft.append(bool(response.from_draft))
        seen.calls.append([call.reshape(-1).tolist() for call in log.calls])
        log.calls.clear()
        seen.text.append(response.text)
        seen.finish = response.finish_reason
        self.beat()


def _library() -> Any:
    """The module of generation; the package's attribute of that name is its function."""
    import importlib

    return importlib.import_module("mlx_lm.generate")


def _loaded(model: Mapping[str, Any]) -> Any:
    """A model whose files are those that the parent has digested, and the types of its weights."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    folder = Path(model["folder"])
    for name, digest in model["files"].items():
        with (folder / name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise ValueError(f"{folder / name}: changed since it was digested; run again")
    network, _config = load_model(folder)
    return network, sorted({str(value.dtype) for _, value in tree_flatten(network.parameters())})


def _processors(asked: Mapping[str, Any], log: SamplerLog) -> list[Any]:
    """The engine's processors behind the tap; none without a parameter that needs one."""
    from mlx_lm.sample_utils import make_logits_processors

    if not asked:
        return []
    shared = {name: value for name, value in asked.items() if name not in ("logit_bias", *OF_ANSWER)}
    bias = {int(token): value for token, value in asked.get("logit_bias", [])}
    logits_processors = make_logits_processors(logit_bias=bias or None, **shared)
    of_answer = {name: asked[name] for name in OF_ANSWER if name in asked}
    return [log.tap, *logits_processors, *map(_behind_the_prompt, make_logits_processors(**of_answer))]


OF_ANSWER: Final = ("presence_penalty", "presence_context_size", "frequency_penalty", "frequency_context_size")
"""Penalties that a suite means for the answer's tokens; the engine's own would count the prompt's too."""


def _behind_the_prompt(processor: Any) -> Any:
    """A processor that sees the engine's history from the place on where its first call ended."""
    start: list[int] = []

    def process(tokens: Any, logits: Any) -> Any:
        if not start:
            start.append(len(tokens))
        return processor(tokens[start[0] :], logits)

    return process


def _held(stream: Any) -> dict[str, int]:
    """Arguments that the engine's generator holds while it runs."""
    inner = stream.gi_frame.f_locals["token_generator"]
    # without a draft the library wraps its generator in an expression
    held = inner.gi_frame.f_locals
    held = held[".0"].gi_frame.f_locals if ".0" in held else held
    return {name: int(held[name]) for name in ARGUMENTS if name in held}


def _deciding(waiting: list[Any], log: SamplerLog, *, drafted: bool) -> list[Any]:
    """The raw rows that decide the next tokens; a round has n rows of the draft, then n + 1 of the target."""
    rows = list(log.rows)
    log.rows.clear()
    return rows[len(rows) // 2 :] if drafted else [*waiting, *rows]


if __name__ == "__main__":
    run_driver(MlxDriver)
