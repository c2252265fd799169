"""Devices: moving a forward's inputs to the model's device, and selecting torch's stable kernels there.

Placements and layouts are made on the CPU, from Python numbers, and moved once
per forward. On a GPU, as everywhere, the probe decides which promises a mode may make.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import torch

from engine.core.errors import ModelError
from engine.models.interface import Placement

CPU: Final = torch.device("cpu")


def usable_device(name: str, where: str) -> torch.device:
    """The device called `name`. Raises ModelError: torch does not know it, or this machine lacks it."""
    try:
        device = torch.device(name)
        # devices without numbers, such as meta, fail here at the latest
        float(torch.zeros(1, device=device).cpu()[0])
    except Exception as error:  # torch raises whatever the device's module raises
        reason = " ".join(str(error).split())[:120]
        raise ModelError(f"{where}: device {name!r} cannot be used on this machine ({reason}); use cpu") from error
    return device


def capability(device: torch.device) -> str:
    """The instruction set of torch's kernels on a CPU, the architecture of a GPU such as `sm_90`."""
    if device.type != "cuda":
        return str(torch.backends.cpu.get_cpu_capability())
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def ask_for_stable_kernels(device: torch.device) -> None:
    """Switch off what rounds a GPU's products beyond their dtype: TF32, and sums in reduced precision.

    These torch settings apply to the whole process. On a CPU the function does nothing.
    """
    if device.type != "cuda":
        return
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    # split sums are left on, for most libraries cannot forbid them; a constant shape has a constant split
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False


def moved(value: Any, device: torch.device) -> Any:
    """Inputs made on the CPU, tensors in frozen dataclasses and sequences, on a device; a placement stays."""
    return value if device == CPU else with_tensors(value, (item.to(device) for item in tensors_of(value)))


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors inside frozen dataclasses and sequences, but those of a placement, which no kernel reads."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | Placement):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The value with other tensors in the places of `tensors_of`, in that order."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, list | tuple):
        return type(value)([with_tensors(item, tensors) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Placement):
        fields = {field.name: with_tensors(getattr(value, field.name), tensors) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
