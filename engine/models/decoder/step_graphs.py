"""Steps of one shape, recorded once and replayed: CUDA graphs of a forward.

A step of a small model is some hundred short kernels, and a GPU waits for Python to launch each. Recorded, they are
one launch. The inputs of a step are laid out on the host as for any forward, after the rows were completed to one
width; their bytes then go to the device in one copy, to where the recorded kernels read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.models.cache import TensorSlotCache
from engine.models.interface import Forward, Placement, WantedOutputs, completed
from engine.models.numerics.devices import moved, tensors_of, with_tensors
from engine.models.numerics.tiled import round_up

Inputs = TypeVar("Inputs")

WIDTHS: Final = (*range(1, 9), 12, 16, 24, 32, 48, 64)
"""Tokens per row of a recorded step; a narrower step is completed to the next width, a wider one is no step."""
SPAN: Final = 128
"""Visible columns are rounded up to a multiple of this, or to the cache's end."""
MOST: Final = 64
"""Recorded steps per cache; steps of further shapes run unrecorded."""
ALIGNED: Final = 16
"""Bytes: where a tensor may begin."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded computation: `replay` runs it again and leaves its answer in the tensors of `answer`."""

    replay: Callable[[], None]
    answer: Forward


class Record(Protocol):
    """How a computation without arguments is recorded."""

    def __call__(self, work: Callable[[], Forward]) -> Recorded:
        """Run the work and record it."""


def as_cuda_graph(work: Callable[[], Forward]) -> Recorded:
    """A CUDA graph; the work runs twice before, because libraries choose kernels and take memory on first use."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = work()
    return Recorded(graph.replay, answer)


class StepGraphs:
    """The recorded steps of one model, by cache, because a recording has the addresses of a cache's tensors."""

    def __init__(self, device: torch.device, record: Record = as_cuda_graph) -> None:
        self._device, self._record = device, record
        self._steps: WeakKeyDictionary[TensorSlotCache, dict[Hashable, _Step]] = WeakKeyDictionary()

    @torch.inference_mode()
    def run(
        self, cache: TensorSlotCache, inputs: Inputs, want: WantedOutputs, work: Callable[[Inputs], Forward]
    ) -> Forward:
        """The work's answer for inputs on the host; its tensors are overwritten by the next step of this shape."""
        steps, tensors = self._steps.setdefault(cache, {}), list(tensors_of(inputs))
        key = (shape_of(inputs), want)
        if key in steps:
            steps[key].buffer.load(tensors)
        elif len(steps) < MOST:
            buffer = StepBuffer(tensors, self._device)
            buffer.load(tensors)
            there = with_tensors(inputs, iter(buffer.there))
            steps[key] = _Step(buffer, self._record(lambda: work(there)))
        else:
            return work(moved(inputs, self._device))
        step = steps[key]
        step.recorded.replay()
        return step.recorded.answer


def graphs_on(device: torch.device) -> StepGraphs | None:
    """Recorded steps for a device that can record; None for one that cannot."""
    return StepGraphs(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class _Step:
    buffer: StepBuffer
    recorded: Recorded


class StepBuffer:
    """Tensors of fixed shapes side by side in one piece of memory, on the host and on the device."""

    def __init__(self, like: list[Tensor], device: torch.device) -> None:
        ends = [0]
        for one in like:
            ends.append(ends[-1] + round_up(one.numel() * one.element_size(), ALIGNED))
        self._gpu = device.type == "cuda"
        self._host = torch.zeros(ends[-1], dtype=torch.uint8, pin_memory=self._gpu)
        self._there = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._here = [_view(self._host, first, item) for first, item in zip(ends, like, strict=False)]
        self.there = [_view(self._there, first, item) for first, item in zip(ends, like, strict=False)]
        # torch leaves its events unannotated
        self._copied = torch.cuda.Event() if self._gpu else None  # type: ignore[no-untyped-call]

    def load(self, tensors: list[Tensor]) -> None:
        """Copy tensors of these shapes to the device."""
        if self._copied is not None:
            # the copy before may still read the host's memory
            self._copied.synchronize()
        for place, tensor in zip(self._here, tensors, strict=True):
            place.copy_(tensor)
        self._there.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _view(memory: Tensor, first: int, like: Tensor) -> Tensor:
    return memory[first : first + like.numel() * like.element_size()].view(like.dtype).view(like.shape)


def is_step(placement: Placement, want: WantedOutputs) -> bool:
    """Whether a placement is a step of decoding: few tokens per row, logits wanted. Prompts are not."""
    return want.logits and placement.tokens.shape[1] <= WIDTHS[-1]


def completed_step(placement: Placement, capacity: int) -> Placement:
    """The placement at the next of WIDTHS, over a rounded number of columns."""
    width = next(width for width in WIDTHS if width >= placement.tokens.shape[1])
    span = min(round_up(placement.span, SPAN), max(capacity, placement.span))
    return completed(placement, width, span, capacity)


def shape_of(value: Any) -> Hashable:
    """All that a recording depends on: shapes and dtypes of the tensors, and every other value."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, list | tuple):
        return tuple(shape_of(item) for item in value)
    if isinstance(value, Placement):
        return value.lengths, value.span, value.first_row
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(shape_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    hashable: Hashable = value
    return hashable
