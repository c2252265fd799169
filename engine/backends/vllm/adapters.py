"""The adapters of a suite: found once, and merged into the target for the reference pass of their requests."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.local_target import LocalTarget
from engine.core.types import Generation, Request

if TYPE_CHECKING:
    from engine.models.files.adapters import Adapter


@dataclass(frozen=True, slots=True)
class AnchorPass:
    """A pass of the reference for one request. `adapter` None reads the target alone; `prompt` is true if the prompt's
    own log-probabilities are wanted too.
    """

    plan: EngineSpec
    adapter: Adapter | None
    prompt: bool


class AdapterTargets:
    """Adapters by name and source, and targets with their changes. Files that are made last as long as this."""

    def __init__(self, source: ModelSource, target: LocalTarget) -> None:
        self._source = source
        self._target = target
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._adapters: dict[str, Adapter] = {}
        self._merged: dict[str, LocalTarget] = {}

    def opened(self, sources: Mapping[str, str]) -> dict[str, Adapter]:
        """The adapters that a suite names. Raises ModelError: one that cannot be read."""
        from engine.models.files.adapters import open_adapter

        for name, source in sources.items():
            known = self._adapters.get(name)
            if known is None or known.source != source:
                self._adapters[name] = open_adapter(name, source, self._target.folder.resolve(), self._folder())
                self._merged.pop(name, None)
        return {name: self._adapters[name] for name in sources}

    def target(self, adapter: Adapter | None) -> LocalTarget:
        """The target as the adapter changes it. Raises ModelError: the adapter is not of this target."""
        if adapter is None:
            return self._target
        if adapter.name not in self._merged:
            from engine.models.files.adapters import merge

            folder = self._folder() / f"merged-{adapter.name}-{adapter.sha256[:8]}"
            merge(self._target.folder.resolve(), adapter.folder, folder)
            self._merged[adapter.name] = LocalTarget(ModelSource(str(folder), self._source.dtype))
        return self._merged[adapter.name]

    def anchor(self, request: Request, tokens: Sequence[int], wanted: AnchorPass) -> Generation:
        """The reference's rows on `tokens`, and the prompt's log-probabilities if they are wanted."""
        adapter = wanted.adapter
        target = self.target(adapter)
        facts = {} if adapter is None else {"adapter": adapter.name, "adapter_sha256": adapter.sha256}
        said = {"prompt_logprobs": prompt_logprobs(target, request.prompt)} if wanted.prompt else {}
        return target.anchor(request, tokens, wanted.plan, {**facts, **said})

    def close(self) -> None:
        """Remove the files that were made, and forget what they held: a backend may be used again."""
        self._adapters.clear()
        self._merged.clear()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _folder(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="specaudit-adapters-")
        return Path(self._scratch.name)


def prompt_logprobs(target: LocalTarget, prompt: Sequence[int]) -> list[float | None]:
    """The reference's log-probability of each of the prompt's tokens but the first."""
    import numpy as np
    from scipy.special import log_softmax

    if len(prompt) < 2:
        return [None] * len(prompt)
    rows = log_softmax(np.asarray(target.reference().rows(prompt, 1), dtype=np.float64), axis=-1)
    return [None, *(float(row[token]) for row, token in zip(rows, prompt[1:], strict=True))]
