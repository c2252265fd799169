"""`trtllm-serve` over the test server: written after its public source, tried on no real one.

Each field is named with its file in github.com/NVIDIA/TensorRT-LLM, and the commit read:

OS  tensorrt_llm/serve/openai_server.py         00057725d9a6591f033e44f31c219e2426827bb7
OP  tensorrt_llm/serve/openai_protocol.py       0076e9390e1ed11515f149eec356f5a03f4a00d8
PH  tensorrt_llm/serve/postprocess_handlers.py  01bf19231d29d8f0766e31c117d1cf39ed00d3d5
MC  tensorrt_llm/metrics/collector.py           050f80def8df236e326949c8bd9dee10fd896a83
"""

import json

from tests.http.server import MODEL, Handler, Reply

KEYS = {
    *("model", "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "tools"),
    *("logprobs", "top_logprobs", "stream", "stream_options", "response_format", "logit_bias", "tool_choice"),
    *("chat_template_kwargs", "parallel_tool_calls"),
}
"""OP, OpenAIBaseModel: other keys are refused."""
NONE = -9999.0
"""OP, ChatCompletionLogProb: a log-probability that the engine did not give."""
LABELS = f'engine_type="pytorch",model_name="{MODEL}"'
"""OS: labels of every metric."""


class TrtReply(Reply):
    """PH, chat_response_post_processor and chat_stream_post_processor."""

    lost = ()

    def logprobs(self, begin, end):
        """PH, create_logprobs: bytes are those of the decoded token, also where it holds half a character."""
        told = super().logprobs(begin, end)
        for place, entry in enumerate((told or {}).get("content", ()), begin):
            entry["bytes"] = list(entry["token"].encode())
            if place in self.lost:
                entry |= {"logprob": NONE, "top_logprobs": []}
        return told

    def rest(self):
        """OP, UsageInfo."""
        usage = {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.found.tokens)}
        total = len(self.prompt) + len(self.found.tokens)
        return {"usage": {**usage, "total_tokens": total, "prompt_tokens_details": {"cached_tokens": 0}}}

    def head(self):
        return {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": self.body["model"]}

    def choice(self, begin=0, end=None):
        told = super().choice(begin, end)
        told.pop("token_ids", None)
        return {**told, "avg_decoded_tokens_per_iter": len(self.found.tokens) / self.trace.steps}

    def events(self):
        """PH: parts of a chat leave out what is null; the last one has only the usage."""
        parts = []
        for line in super().events().decode().split("\n\n")[:-2]:
            part = json.loads(line.removeprefix("data: "))
            for choice in part["choices"]:
                for key in [key for key, value in choice.items() if value is None]:
                    del choice[key]
                if "finish_reason" in choice:
                    choice["avg_decoded_tokens_per_iter"] = len(self.found.tokens) / self.trace.steps
            parts.append(f"data: {json.dumps(part)}\n\n")
        return "".join([*parts, "data: [DONE]\n\n"]).encode()


class TrtHandler(Handler):
    """OS, register_routes; `return_perf_metrics` mounts the page for Prometheus."""

    prometheus = True
    reply_kind = TrtReply

    def do_GET(self):
        engine = self.server.engine
        if self.path == "/prometheus/metrics" and self.prometheus:
            self.answer(200, self.page().encode(), "text/plain")
        elif self.path == "/metrics":
            # OS, get_iteration_stats: each reading takes the statistics away
            seen = getattr(self.server, "taken", (0, 0))
            self.server.taken = (engine.drafted, engine.accepted)
            drafts = {"numDraftTokens": engine.drafted - seen[0], "numAcceptedTokens": engine.accepted - seen[1]}
            stats = {"iter": 1, "specDecodingStats": {**drafts, "acceptanceLength": 1.0}}
            rank = {"iter": 1, "attentionDpRank": 1, "specDecodingStats": {**drafts, "acceptanceLength": 1.0}}
            self.answer(200, json.dumps([stats, rank] if engine.gamma else []).encode())
        elif self.path == "/server_info":
            # OS, get_server_info
            self.answer(200, b'{"disaggregated_params": null}')
        else:
            super().do_GET()

    def page(self):
        """MC: the counters, and settings as labels of samples that are 1."""
        engine = self.server.engine
        lines = [f'trtllm_model_config_info{{{LABELS},model="/m",served_model_name="{MODEL}"}} 1.0']
        if engine.gamma:
            spec = f'spec_enabled="true",spec_method="Eagle",spec_num_tokens="{engine.gamma}"'
            lines.append(f"trtllm_speculative_config_info{{{LABELS},{spec}}} 1.0")
            names = {"draft": engine.drafted, "accepted": engine.accepted}
            lines += [f"trtllm_spec_decode_num_{name}_tokens_total{{{LABELS}}} {n}" for name, n in names.items()]
        return "\n".join(lines) + "\n"

    def reply(self, body):
        assert set(body) <= KEYS, set(body) - KEYS
        made = super().reply(body)
        return self.reply_kind(**{name: getattr(made, name) for name in Reply.__dataclass_fields__})
