"""Configurations that the lean forward reads."""

KINDS = ("llama", "qwen2", "qwen3")
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = [
    *((kind, {}) for kind in KINDS),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4, "head_dim": 16}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen3", {"attention_bias": True, "head_dim": 12}),
]
