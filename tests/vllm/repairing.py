"""A worker that is repaired and witnesses nothing, to be timed beside one that does both."""

from engine.backends.vllm.patches import EXPAND, repair


class Repairing:
    def specaudit_repair(self):
        repair(EXPAND, self.model_runner)
