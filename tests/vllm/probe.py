"""A class that vLLM mixes into its worker: what the drafting module reads and says, kept and written to a file.

Every forward of vLLM's own drafting is kept, with the logits of all its rows, computed by the module itself; the
warm-up is over by then. Reached by `collective_rpc`, a public way, with names of methods.
"""

import torch


def copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


class DrafterProbe:
    def keep_forwards(self):
        """From now on."""
        model, self.kept = self.model_runner.drafter.model, []
        forward = model.forward
        model.forward = lambda *args, **named: self._forward(forward, args, named)
        if hasattr(model, "combine_hidden_states"):
            combine = model.combine_hidden_states
            model.combine_hidden_states = lambda states: self._combine(combine, states)
        return type(model).__name__

    def _forward(self, forward, args, named):
        read = {name: copied(value) for name, value in named.items()} | {
            f"arg{i}": copied(v) for i, v in enumerate(args)
        }
        out = forward(*args, **named)
        first = out[0] if isinstance(out, tuple) else out
        logits = self.model_runner.drafter.model.compute_logits(first)
        self.kept.append({"what": "forward", "read": read, "logits": logits})
        return out

    def _combine(self, combine, states):
        fused = combine(states)
        self.kept.append({"what": "combine", "read": copied(states), "fused": copied(fused)})
        return fused

    def write_forwards(self, path):
        """What was kept since the last time."""
        kept, self.kept = self.kept, []
        torch.save(kept, path)
        return len(kept)
