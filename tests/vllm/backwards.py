"""vLLM's driver with a detokenizer that reads the tokens of a step backwards: right tokens, wrong text.

Run as an interpreter would be: `python -m tests.vllm.backwards -m engine.backends.vllm.driver`.
"""

from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

from engine.backends.process.driver import run_driver
from engine.backends.vllm.driver import VllmDriver

GIVEN = FastIncrementalDetokenizer.update


def update(self, new_token_ids, stop_terminated):
    """The tokens stay in order, their texts do not."""
    before = self.token_ids[:]
    found = GIVEN(self, new_token_ids[::-1], stop_terminated)
    self.token_ids[:] = [*before, *new_token_ids]
    return found


if __name__ == "__main__":
    FastIncrementalDetokenizer.update = update
    run_driver(VllmDriver)
