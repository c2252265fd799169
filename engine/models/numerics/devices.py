"""Devices: moving a forward's inputs to the model's device, and selecting torch's stable kernels there.

Placements and layouts are made on the CPU, from Python numbers, and moved once
per forward. The tests have not run this module on a GPU; there, as everywhere, the probe decides which promises a mode
may make.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import torch

from engine.core.errors import ModelError

CPU: Final = torch.device("cpu")


def usable_device(name: str, where: str) -> torch.device:
    """The device called `name`.

    Raises:
        ModelError: torch does not know it, or this machine lacks it.
    """
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
    """Switch off the features that make a GPU's products depend on shapes: TF32, reduced precision sums, split
    reductions.

    These torch settings apply to the whole process. On a CPU the function does nothing.
    """
    if device.type != "cuda":
        return
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    # the second value forbids splitting the sum over blocks, whose number depends on the shape
    matmul.allow_bf16_reduced_precision_reduction = (False, False)
    matmul.allow_fp16_reduced_precision_reduction = (False, False)


def moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a frozen dataclass or sequence of such, on another device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: moved(getattr(value, each.name), device) for each in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, list | tuple):
        return type(value)(moved(each, device) for each in value)
    return value
