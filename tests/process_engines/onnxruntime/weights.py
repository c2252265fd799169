"""Other weights in a converted model."""

import numpy as np

HEAD = "lm_head.MatMul.weight"


def change_onnx(folder):
    """Noise of a fifth of their own spread on the weights of the head."""
    path = folder / "model.onnx"
    # imported here, because only the environment of the engine has it
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    (head,) = (each for each in model.graph.initializer if each.name == HEAD)
    weights = numpy_helper.to_array(head)
    noise = np.random.default_rng(0).normal(size=weights.shape) * weights.std() / 5
    head.CopyFrom(numpy_helper.from_array((weights + noise).astype(np.float32), HEAD))
    (folder / "model.onnx.data").unlink()
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data")
