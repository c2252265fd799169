"""Other weights in a converted model."""

import numpy as np


def change_gguf(folder):
    """Noise of a fifth of their own spread on the last layer's output weights."""
    # imported here, because only the environment of the engine has it
    import gguf

    reader = gguf.GGUFReader(folder / "model.gguf", "r+")
    weights = next(each.data for each in reader.tensors if each.name == "blk.3.ffn_down.weight")
    weights += (np.random.default_rng(0).normal(size=weights.shape) * weights.std() / 5).astype(np.float32)
    reader.data.flush()
