"""Models for OpenVINO: graphs by `build`, in float32, and the models that it does not know."""

from functools import partial
from typing import Final

from engine.backends.openvino_genai.settings import PROGRAM
from engine.backends.process.convert import ModelConverter, paths_of, require_known

MODEL: Final = "openvino_model.xml"
CONVERTER: Final = ModelConverter(
    kind="openvino",
    program=PROGRAM,
    module="engine.backends.openvino_genai.build",
    arguments=paths_of,
    result=MODEL,
    packages=("openvino", "openvino-genai", "openvino-tokenizers", "transformers"),
    require=partial(require_known, kind="openvino"),
    ours=True,
)
