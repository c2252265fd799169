"""The worker's hook on an engine that serves requests of one adapter with another's weights, and does not say so."""

from engine.backends.vllm.hooks.worker import RecordingWorker


class Swapping(RecordingWorker):
    """Two adapters change places where the layers look them up; the batch keeps the right names."""

    def specaudit_begin(self, repairs):
        manager = self.model_runner.lora_manager
        given = manager.set_active_adapters

        def swapped(adapters, mapping):
            numbers = sorted(each.lora_int_id for each in adapters)
            if len(numbers) == 2:
                other = dict(zip(numbers, reversed(numbers), strict=True)) | {0: 0}
                mapping.index_mapping = tuple(other[each] for each in mapping.index_mapping)
                mapping.prompt_mapping = tuple(other[each] for each in mapping.prompt_mapping)
            return given(adapters, mapping)

        manager.set_active_adapters = swapped
        return super().specaudit_begin(repairs)
