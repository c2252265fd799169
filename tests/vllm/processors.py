"""A logits processor of vLLM that changes nothing."""

from vllm.v1.sample.logits_processor import LogitsProcessor


class Unchanged(LogitsProcessor):
    """Rows go out as they came in."""

    def __init__(self, vllm_config, device, is_pin_memory):
        pass

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits
