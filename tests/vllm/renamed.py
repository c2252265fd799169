"""The worker's hook, looking for a callable that this vLLM does not have: as after a change of vLLM."""

import dataclasses

from engine.backends.vllm import guard
from engine.backends.vllm.hook_worker import Recording

RENAMED = dataclasses.replace(guard.V1[1], path="rejection_sample_with_another_name")


class Renamed(Recording):
    points_v1 = (guard.V1[0], RENAMED)
