"""A recording worker whose model runner is broken as a file says, so that one engine serves every fault.

Faults of rows and inputs are those of a step that speculates; those of modules are other weights, in every engine.
Steps of greedy requests are left alone: a greedy arm beside a broken one is clean.
"""

import os
from pathlib import Path

import torch

from engine.backends.vllm.hooks.worker import RecordingWorker

PLACE = "SPECAUDIT_TEST_FAULT"
"""The environment variable that names the file with the fault's name."""
GAMMA = 4
LAYER, HEAD = 1, 32


def _segments(logits, metadata):
    """The rows of each request: its drafted tokens' and the one behind them."""
    return torch.split(logits, [count + 1 for count in metadata.num_draft_tokens])


def _shifted(logits, metadata):
    return torch.cat([torch.cat([rows[:1], rows[:-1]]) for rows in _segments(logits, metadata)])


def _bonus(logits, metadata):
    return torch.cat(
        [torch.cat([rows[:-1], rows[-2:-1]]) if len(rows) > 1 else rows for rows in _segments(logits, metadata)]
    )


def _of_another(logits, metadata):
    segments = _segments(logits, metadata)
    others = [*segments[1:], segments[0]]
    return torch.cat([b if len(a) == len(b) else a for a, b in zip(segments, others, strict=True)])


def _rounded(logits, metadata):
    return logits.bfloat16().float()


ROWS = {
    "target_rows_shifted": _shifted,
    "bonus_wrong_row": _bonus,
    "rows_of_another_request": _of_another,
    "drafted_rows_in_bfloat16": _rounded,
}


def _decoding(positions):
    """Slices of the positions of requests whose prompt is read: runs of at most a draft and one token."""
    starts = [0, *(i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1)]
    runs = [slice(a, b) for a, b in zip(starts, [*starts[1:], len(positions)], strict=True)]
    return [run for run in runs if positions[run.start] > 0 and run.stop - run.start <= GAMMA + 1]


def _late(ids, positions):
    places = positions.clone()
    for run in _decoding(positions.tolist()):
        places[run.start + 1 : run.stop] += 1
    return {"positions": places}


def _stale(ids, positions):
    read = ids.clone()
    for run in _decoding(positions.tolist()):
        read[run.start] = (read[run.start] + 1) % 2048
    return {"input_ids": read}


def _first_lost(ids, positions):
    return {"input_ids": torch.where(positions == 0, torch.full_like(ids, 2), ids)}


INPUTS = {"positions_off_by_one": _late, "stale_last_entry": _stale, "prompt_s_first_token_lost": _first_lost}


def _swapped(ids):
    inside = (ids >= 300) & (ids < 316)
    return torch.where(inside, 300 + (ids - 299) % 16, ids)


def _adapted(x, out):
    made = torch.Generator().manual_seed(5)
    down, up = (torch.randn(4, width, generator=made) for width in (x.shape[-1], out.shape[-1]))
    return out + 0.02 * (x @ down.T) @ up


def _of_4_bits(x, out):
    step = out.abs().amax(dim=-1, keepdim=True).clamp_min(1e-9) / 7
    return (out / step).round() * step


ATTENTION = {
    "attention_scaled": lambda x, out: 0.9 * out,
    "layer_skipped": lambda x, out: torch.zeros_like(out),
    "adapter_merged": _adapted,
    "activations_of_4_bits": _of_4_bits,
}
"""What a layer's attention adds to its input, [n, hidden], from the heads' [n, heads * width]."""
OTHERS = ("head_zeroed", "other_rope_scale", "other_norm_epsilon", "embeddings_swapped")
SETTINGS = ("temperature_1", "no_top_p")
VERIFYING = (*ROWS, *INPUTS, *SETTINGS)
MODEL = (*ATTENTION, *OTHERS)


class Broken(RecordingWorker):
    """The recorder wraps the runner first: it sees the broken rows, as it would see a bug of vLLM's."""

    def specaudit_begin(self, repairs):
        facts = super().specaudit_begin(repairs)
        Breaking(self.model_runner).install()
        return facts


class Breaking:
    """The faults over one runner."""

    def __init__(self, runner):
        self.runner = runner
        self.place = Path(os.environ[PLACE])
        self.speculates = runner.speculative_config is not None
        self.norms = {
            item: item.variance_epsilon for item in runner.model.modules() if hasattr(item, "variance_epsilon")
        }

    @property
    def now(self):
        """The fault of this step; empty without one."""
        return "" if self.runner.input_batch.all_greedy else self.place.read_text()

    def install(self):
        self.sample, self.forward = self.runner._sample, self.runner.model.forward
        self.runner._sample, self.runner.model.forward = self.broken_sample, self.broken_forward
        layer = self.runner.model.model.layers[LAYER]
        layer.self_attn.o_proj.register_forward_hook(self.attention)
        layer.mlp.down_proj.register_forward_hook(self.skipped)
        layer.self_attn.o_proj.register_forward_pre_hook(self.head)
        for each in self.runner.model.model.layers:
            each.self_attn.rotary_emb.register_forward_pre_hook(self.rope)

    def broken_sample(self, logits, metadata):
        fault = self.now
        if self.speculates and fault in SETTINGS:
            settings = self.runner.input_batch.sampling_metadata
            if fault == "temperature_1":
                settings.temperature = torch.ones_like(settings.temperature)
            else:
                settings.top_p = None
        if metadata is not None and logits is not None and fault in ROWS:
            logits = ROWS[fault](logits, metadata)
        return self.sample(logits, metadata)

    def broken_forward(self, *args, **named):
        fault = self.now
        for norm, usual in self.norms.items():
            norm.variance_epsilon = 1e-2 if fault == "other_norm_epsilon" else usual
        if self.speculates and fault in INPUTS:
            named |= INPUTS[fault](named["input_ids"], named["positions"])
        if fault == "embeddings_swapped":
            named["input_ids"] = _swapped(named["input_ids"])
        return self.forward(*args, **named)

    def attention(self, module, args, out):
        fault = self.now
        return (ATTENTION[fault](args[0], out[0]), *out[1:]) if fault in ATTENTION else out

    def skipped(self, module, args, out):
        return (torch.zeros_like(out[0]), *out[1:]) if self.now == "layer_skipped" else out

    def head(self, module, args):
        if self.now != "head_zeroed":
            return None
        x = args[0].clone()
        x[..., :HEAD] = 0
        return (x, *args[1:])

    def rope(self, module, args):
        return (args[0] // 2, *args[1:]) if self.now == "other_rope_scale" else None
