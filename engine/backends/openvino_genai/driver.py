"""`python -m engine.backends.openvino_genai.driver`: one engine, with requests on stdin and answers on stdout.

The requests of a message run together. After every step of the engine, the tokens that it committed are read. With
counters, one request runs at a time by the engine's own loop, which counts drafts. Imports only openvino-genai and
numpy.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.backends.installed import installed, versions
from engine.backends.process.driver import EngineDriver, microseconds, run_driver

PACKAGES: Final = ("openvino", "openvino-tokenizers", "numpy")


@dataclass(slots=True)
class RunningRequest:
    """One running request: its handle and configuration, and by step its tokens and their log-probabilities."""

    id: str
    handle: Any
    config: Any
    steps: list[list[int]] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    finish: str = "NONE"


class OpenVinoDriver(EngineDriver):
    """The loop of one engine."""

    _pipeline: Any = None
    _numbered = 0

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Load the models; the engine's facts."""
        import openvino_genai as genai

        properties = dict(job["properties"])
        draft = {"draft_model": genai.draft_model(job["draft"], job["device"], **properties)} if job["draft"] else {}
        lookup = {"prompt_lookup": True} if job["lookup"] else {}
        scheduler = genai.SchedulerConfig()
        for name, value in job["scheduler"].items():
            setattr(scheduler, name, value)
        given = (scheduler, job["device"], {**properties, **draft, **lookup})
        self._pipeline = genai.ContinuousBatchingPipeline(job["target"], *given)
        kept = {name: getattr(scheduler, name) for name in job["scheduler"]}
        return {
            "installed": installed(genai.__file__),
            "build": genai.get_version(),
            "packages": versions(PACKAGES),
            "device": job["device"],
            "properties": properties,
            "scheduler": kept,
        }

    def options(self, speculative: Mapping[str, Any]) -> dict[str, Any]:
        """The options of speculation as the engine keeps them, and the way of speculating that they select."""
        import openvino_genai as genai

        config = genai.GenerationConfig(max_new_tokens=1, **speculative)
        config.validate()
        kept = {name: getattr(config, name) for name in speculative}
        way = "draft_model" if config.is_assisting_generation() else "none"
        # a looked-up draft is assisted generation too
        return {**kept, "way": "prompt_lookup" if config.is_prompt_lookup() else way}

    def _config(self, request: Mapping[str, Any]) -> Any:
        import openvino_genai as genai

        asked = dict(request["options"])
        asked["stop_token_ids"] = set(asked["stop_token_ids"])
        config = genai.GenerationConfig(**asked, **request["speculative"])
        config.validate()
        return config

    def generate(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Run requests together; the library's exceptions concern all of them."""
        begun = time.perf_counter()
        run = self._counted if requests[0]["counters"] else self._stepped
        self.guarded([request["id"] for request in requests], lambda: run(requests, begun))

    def _stepped(self, requests: Sequence[Mapping[str, Any]], begun: float) -> None:
        running = [self._added(request) for request in requests]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for reading in running:
                _read(reading)
            self.beat()
        for reading in running:
            status = reading.handle.get_status().name
            if status != "FINISHED":
                self.say(op="refused", id=reading.id, message=f"the engine gave the request up: {status}")
            else:
                self._report(reading, begun)

    def _added(self, request: Mapping[str, Any]) -> RunningRequest:
        import openvino as ov

        config = self._config(request)
        self._numbered += 1
        ids = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        return RunningRequest(request["id"], self._pipeline.add_request(self._numbered, ids, config), config)

    def _counted(self, requests: Sequence[Mapping[str, Any]], begun: float) -> None:
        """One request by `generate`, whose streamer shows every step and whose result holds the counters."""
        import openvino as ov
        import openvino_genai as genai

        (request,) = requests
        reading = RunningRequest(request["id"], None, self._config(request))

        class Steps(genai.StreamerBase):  # type: ignore[misc]  # the package has no types here
            def write(self, token: Any) -> Any:
                reading.steps.append(list(token) if isinstance(token, list) else [token])
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                return

        ids = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        (result,) = self._pipeline.generate([ids], [reading.config], Steps())
        reading.finish = result.finish_reasons[0].name
        metrics = result.extended_perf_metrics
        counts = None if metrics is None else _counts(metrics)
        self._report(reading, begun, sequence=list(result.m_generation_ids[0]), counts=counts)

    def _report(self, reading: RunningRequest, begun: float, **more: Any) -> None:
        self.say(
            op="output",
            id=reading.id,
            tokens=[token for step in reading.steps for token in step],
            steps=[len(step) for step in reading.steps],
            logprob=reading.logprob,
            finish=reading.finish,
            options=_kept(reading.config),
            latency_us=microseconds(begun),
            **more,
        )


def _read(reading: RunningRequest) -> None:
    while reading.handle.can_read():
        for output in reading.handle.read().values():
            reading.steps.append(list(output.generated_ids))
            reading.logprob += list(output.generated_log_probs)
            reading.finish = output.finish_reason.name


def _kept(config: Any) -> dict[str, Any]:
    """The numbers, switches and token ids of a configuration."""
    values = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    kept = {name: value for name, value in values.items() if isinstance(value, bool | int | float)}
    return {**kept, "stop_token_ids": sorted(config.stop_token_ids)}


def _counts(metrics: Any) -> dict[str, int]:
    return {
        "drafted": metrics.get_num_draft_tokens(),
        "accepted": metrics.get_num_accepted_tokens(),
        "rejected": metrics.get_num_rejected_tokens(),
        "draft_forwards": metrics.get_num_draft_processed_tokens(),
    }


if __name__ == "__main__":
    run_driver(OpenVinoDriver)
