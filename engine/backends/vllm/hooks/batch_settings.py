"""What the worker's batch holds for each of its requests: the adapter in effect, and whether a seed fixes its numbers.

Read from the arrays that the step's forward and sampler use, not from the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def batch_settings(batch: Any) -> tuple[Mapping[str, Any], ...]:
    """[B] for each request of model runner V1's batch."""
    numbers = batch.request_lora_mapping[: batch.num_reqs].tolist()
    adapters = {number: each.lora_name for number, each in batch.lora_id_to_lora_request.items()}
    return tuple(
        {"adapter": adapters.get(int(number)), "seeded": row in batch.generators} for row, number in enumerate(numbers)
    )
