"""Programs that stand in for the engine's Python: one whose builder writes a model, one whose builder refuses."""

import sys

CONFIG = {"model": {"eos_token_id": 0, "decoder": {"filename": "model.onnx", "session_options": {}}}}
BUILDER = f"""#!{sys.executable}
import json, pathlib, sys
if sys.argv[1] == "-c":
    print(json.dumps(dict.fromkeys(sys.argv[3:], "1")))
elif sys.argv[1:3] == ["-m", "onnxruntime_genai.models.builder"]:
    out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
    out.mkdir(parents=True)
    (out / "model.onnx").write_bytes(b"graph")
    (out / "genai_config.json").write_text(json.dumps({CONFIG!r}))
"""
REFUSING = "#!/bin/sh\necho 'NotImplementedError: no such model' >&2\nexit 1\n"


def write_program(folder, text):
    """The path of an executable in the folder."""
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)
