"""The weights of a folder, as this project's own converters read them in the engine's Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    """Every tensor of a folder, in float32."""
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as stream:
            weights.update({name: stream.get_tensor(name).float().numpy() for name in stream.keys()})  # noqa: SIM118
    return weights
