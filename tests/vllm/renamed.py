"""The worker's hook, looking for a callable that this vLLM does not have: as after a change of vLLM."""

import dataclasses

from engine.backends.vllm import compat as guard
from engine.backends.vllm.hooks.worker import RecordingWorker

RENAMED = dataclasses.replace(guard.V1[1], path="rejection_sample_with_another_name")


class Renamed(RecordingWorker):
    points_v1 = (guard.V1[0], RENAMED, *guard.V1[2:])
