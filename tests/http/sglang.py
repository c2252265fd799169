"""SGLang's own route and pages over the test server: written after its public source, tried on no real one.

Each field is named with its file below `python/sglang/srt` of github.com/sgl-project/sglang, and the commit read:

TM  managers/tokenizer_manager.py      001067fffe33427bee0ed2f007fb7551a1d76b44
IO  managers/io_struct.py              001067fffe33427bee0ed2f007fb7551a1d76b44
SP  sampling/sampling_params.py        00c17cafcb9e289d5ca97c50e44ada54e4fd5b03
HS  entrypoints/http_server.py         0025436eab0556737d615b36a4dd3e1e26e82f3d
"""

import json

import numpy as np

from engine.core.types import FinishReason
from engine.record.trace import Role
from tests.http.server import MODEL, Handler, Reply, SamplingParams

NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""SP: names of SGLang for parameters of OpenAI's completions."""
KNOWN = {*SamplingParams.__dataclass_fields__, *NAMES, "json_schema", "regex", "ebnf"}
FLAGS = {
    *("text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num"),
    *("return_text_in_logprobs", "stream", "return_prompt_token_ids"),
}
"""IO, GenerateReqInput: the keys that may come; SGLang itself ignores others."""
CONFIG = {
    "served_model_name": MODEL,
    "model_path": "/models/target",
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "api_key": "a-secret-of-the-server",
    "version": "0.5.test",
    "internal_states": [{}],
}
"""HS, get_server_info (/server_info in later versions): the server's arguments, internal states, version."""


def openai_body(body):
    """The request as the test server reads it."""
    assert set(body) <= FLAGS, set(body) - FLAGS
    sampling = dict(body["sampling_params"])
    assert set(sampling) <= KNOWN, set(sampling) - KNOWN
    # SP, verify: 0 is refused
    assert sampling.get("top_k", -1) == -1 or sampling["top_k"] >= 1
    assert isinstance(sampling.get("json_schema", ""), str)
    schema = sampling.pop("json_schema", None)
    told = {NAMES.get(name, name): value for name, value in sampling.items()}
    told["top_k"] = max(told.get("top_k", 0), 0)
    if schema is not None:
        told["response_format"] = {"type": "json_schema", "json_schema": {"schema": json.loads(schema)}}
    return {**told, "model": MODEL, "prompt": body.get("input_ids", body.get("text")), "stream": body.get("stream")}


class NativeReply(Reply):
    """TM, _handle_batch_output: one answer, whole or in parts. `body` is the native one."""

    incremental = False
    weights = "default"

    def native(self, begin, end, *, last):
        """The part of the tokens up to `end`; from `begin` on if the stream is incremental."""
        begin = begin if self.incremental else 0
        # SP, no_stop_trim: what stopped the answer is not in its text
        upto = None if last else len("".join(self.pieces[:end]))
        told = {
            "text": self.text()[len("".join(self.pieces[:begin])) : upto],
            "output_ids": list(self.found.tokens[begin:end]),
            "meta_info": self.meta(begin, end, last),
        }
        return {**told, "prompt_token_ids": list(self.prompt)} if self.body.get("return_prompt_token_ids") else told

    def meta(self, begin, end, last):
        told = {
            "id": "a1b2",
            "finish_reason": self.finish() if last else None,
            "prompt_tokens": len(self.prompt),
            "weight_version": self.weights,
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": end,
            "cached_tokens": 0,
        }
        if self.body.get("return_logprob") and self.settings.scores:
            told |= self.scored(begin, end)
        return {**told, "e2e_latency": 0.1, **self.spec()} if last else told

    def finish(self):
        """managers/schedule_batch.py, FINISH_*.to_json: the end token is named like a stop token."""
        reason, last = self.found.finish_reason, self.found.tokens[-1]
        if reason is FinishReason.LENGTH:
            return {"type": "length", "length": len(self.found.tokens)}
        stopped = self.stop_reason()
        return {"type": "stop", "matched": last if reason is FinishReason.EOS else stopped}

    def stop_reason(self):
        if self.found.finish_reason is not FinishReason.STOP:
            return None
        sampling, last = self.body["sampling_params"], self.found.tokens[-1]
        return last if last in sampling.get("stop_token_ids", ()) else sampling["stop"][0]

    def scored(self, begin, end):
        """TM, add_logprob_to_meta_info and detokenize_logprob_tokens: triples of value, id, text."""
        rows = self.trace.logits[begin:end].astype(np.float64)
        rows = rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
        tokens = self.found.tokens[begin:end]
        values = self.settings.told([float(row[token]) for row, token in zip(rows, tokens, strict=True)])
        named = (
            (lambda token: self.spelled(token)) if self.body.get("return_text_in_logprobs") else (lambda token: None)
        )
        tops = np.argsort(-rows, axis=-1)[:, : self.body["top_logprobs_num"]]
        return {
            "input_token_logprobs": [],
            "output_token_logprobs": [
                [value, token, named(token)] for value, token in zip(values, tokens, strict=True)
            ],
            "output_token_logprobs_length": end,
            "output_top_logprobs": [
                [[float(row[t]), int(t), named(int(t))] for t in top] for row, top in zip(rows, tops, strict=True)
            ],
        }

    def spec(self):
        """TM, _calculate_spec_decoding_metrics: nothing of a request without a verified draft."""
        steps = int(np.count_nonzero(self.trace.n_drafted))
        if not steps:
            return {}
        owner = np.repeat(np.arange(self.trace.steps), self.trace.n_emitted)
        kept = np.bincount(owner[self.trace.role == Role.ACCEPTED], minlength=self.trace.steps)
        lengths = np.bincount(kept[self.trace.n_drafted > 0]).tolist()
        drafted, accepted = int(self.trace.n_drafted.sum()), self.trace.n_accepted
        return {
            "spec_accept_rate": accepted / drafted,
            "spec_accept_length": len(self.found.tokens) / steps,
            "spec_num_correct_drafts": accepted,
            "spec_num_proposed_drafts": drafted,
            "spec_verify_ct": steps,
            "spec_accepted_drafts": accepted,
            "spec_proposed_drafts": drafted,
            "spec_correct_drafts_histogram": lengths,
            "spec_accept_histogram": lengths,
        }

    def whole(self):
        return json.dumps(self.native(0, len(self.found.tokens), last=True)).encode()

    def events(self):
        """HS, generate_request: parts, and the mark of the end."""
        ends = [*range(2, len(self.found.tokens), 2), len(self.found.tokens)]
        begins = [0, *ends[:-1]]
        parts = [self.native(begin, end, last=end == ends[-1]) for begin, end in zip(begins, ends, strict=True)]
        return "".join([*(f"data: {json.dumps(part)}\n\n" for part in parts), "data: [DONE]\n\n"]).encode()


class NativeHandler(Handler):
    """HS: `/generate` and the server's page about itself; it has no page of its version alone."""

    config = CONFIG
    page = "/server_info"
    reply_kind = NativeReply

    def do_GET(self):
        if self.path == self.page:
            plain = {} if self.server.engine.gamma else {"speculative_algorithm": None}
            self.answer(200, json.dumps({**self.config, **plain}).encode())
        elif self.path in ("/version", "/metrics"):
            self.answer(404, b'{"detail": "Not Found"}')
        else:
            super().do_GET()

    def reply(self, body):
        assert self.path == "/generate"
        made = super().reply(openai_body(body))
        fields = {name: getattr(made, name) for name in Reply.__dataclass_fields__}
        return self.reply_kind(**{**fields, "body": body})
