"""Fingerprint of a run's code, packages and hardware, and the user who ran it.

The format is versioned (`FORMAT`): a digest is comparable with digests of the same format only. It deliberately omits
facts that do not change numbers (host name, free memory, load).
"""

import getpass
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

FORMAT: Final = 1
PACKAGES: Final = (
    *("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "llguidance", "xgrammar"),
    *("presidio-analyzer", "detect-secrets", "jsonschema", "sqlalchemy", "click", "specaudit"),
)
"""Distributions whose versions are recorded, if they are installed."""
CPU_FLAGS: Final = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")
"""Instruction sets that change the numbers that kernels give."""
NO_TORCH: Final[Mapping[str, Any]] = {"torch_cpu": None, "torch_threads": None, "libraries": [], "gpus": []}
"""The facts of an installation without the engine, which computes no logits."""
CODE: Final = ("audit", "engine", "schemas", "migrations", "suites")
"""Folders whose changes make a checkout dirty."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Software and hardware of a run; `sha256` covers the other three fields and the format's version."""

    packages: Mapping[str, str]
    hardware: Mapping[str, Any]
    code: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True, slots=True)
class Cpu:
    """The properties of a processor that affect numbers."""

    model: str
    flags: tuple[str, ...]


def environment() -> Environment:
    """The fingerprint of this process. Imports torch, if it is installed."""
    return fingerprint(package_versions(), hardware(), code_version(Path(__file__)))


def fingerprint(packages: Mapping[str, str], hardware: Mapping[str, Any], code: Mapping[str, Any]) -> Environment:
    """An environment with its digest, which does not depend on the order of the parts."""
    parts = {"format": FORMAT, "packages": packages, "hardware": hardware, "code": code}
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Environment(packages, hardware, code, hashlib.sha256(canonical.encode()).hexdigest())


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Versions of those `names` that are installed."""
    result = {}
    for name in names:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result


def hardware() -> dict[str, Any]:
    """System, processor, torch's threads and libraries, GPUs; without the engine no process here computes numbers."""
    cpu = read_cpu(Path("/proc/cpuinfo"))
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu.model,
        "cpu_flags": list(cpu.flags),
        **(_torch_facts() if find_spec("torch") else NO_TORCH),
    }


def use_threads(count: int) -> None:
    """Bound the threads of torch, if it is installed: tiny models run slower on two threads than on one."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(count)


def _torch_facts() -> dict[str, Any]:
    import torch

    return {
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
        "libraries": list(numeric_libraries(torch.__config__.show())),
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def read_cpu(path: Path) -> Cpu:
    """The processor from Linux's cpuinfo, elsewhere from Python's `platform`."""
    try:
        return parse_cpuinfo(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return Cpu(platform.processor() or platform.machine(), ())


def parse_cpuinfo(text: str) -> Cpu:
    """Model and the flags among `CPU_FLAGS` of the first processor in a cpuinfo text."""
    first = text.split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    fields = {key.strip().lower(): value.strip() for key, _, value in lines}
    present = set(fields.get("flags", fields.get("features", "")).split())
    flags = tuple(flag for flag in CPU_FLAGS if flag in present)
    return Cpu(fields.get("model name", platform.machine()), flags)


def numeric_libraries(config: str) -> tuple[str, ...]:
    """The BLAS and oneDNN lines of torch's build description, without their links and hashes."""
    lines = (line.strip(" -") for line in config.splitlines())
    wanted = (line for line in lines if re.match(r"Intel\(R\) (oneAPI )?(Math Kernel|MKL)|OpenBLAS|oneDNN", line))
    return tuple(re.sub(r" (for .*|\(Git Hash.*)$", "", line) for line in wanted)


def code_version(file: Path) -> dict[str, Any]:
    """Version of the code that `file` belongs to: package version, and commit if git tracks the file.

    A file in an environment inside an unrelated repository is not tracked by that repository and gets no commit.
    """
    version: dict[str, Any] = {"version": package_versions(("specaudit",)).get("specaudit")}
    folder = file.resolve().parent
    if _git(folder, "ls-files", "--error-unmatch", file.name) is None:
        return version
    root = _git(folder, "rev-parse", "--show-toplevel")
    commit = _git(folder, "rev-parse", "HEAD")
    if root is None or commit is None:
        return version
    changes = _git(Path(root), "status", "--porcelain", "--", *CODE)
    return version | {"commit": commit, "dirty": changes != ""}


def actor() -> str:
    """The current user's login name, or `unknown`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command, or None if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
