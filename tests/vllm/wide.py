"""A random llama with a vocabulary of any size, without a tokenizer, to measure what a row costs."""

import json

import torch
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS = 128, 2, 4
CONTEXT = 640


def write_model(folder, vocabulary):
    """The model's folder, in transformers' format."""
    numbers = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=numbers) * shape[-1] ** -0.5

    tensors = {"model.embed_tokens.weight": 8 * drawn(vocabulary, WIDTH), "model.norm.weight": torch.ones(WIDTH) * 0.3}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {f"{at}self_attn.{name}_proj.weight": drawn(WIDTH, WIDTH) for name in "qkvo"}
        tensors |= {f"{at}mlp.{name}_proj.weight": drawn(2 * WIDTH, WIDTH) for name in ("gate", "up")}
        tensors |= {f"{at}mlp.down_proj.weight": drawn(WIDTH, 2 * WIDTH)}
        tensors |= {f"{at}{name}_layernorm.weight": torch.ones(WIDTH) for name in ("input", "post_attention")}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": vocabulary,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
