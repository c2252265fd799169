"""A server of counters beside the real one: pages as vLLM writes them, and every way in which a page can fail."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    """One answer of the server."""

    body: str = ""
    status: int = 200
    seconds: float = 0.0
    length: int | None = None


@dataclass
class MetricsServer:
    """A running server; `answer` gives each page, `reply` answers what is posted, `asked` holds headers of pages."""

    url: str
    asked: list[dict[str, str]] = field(default_factory=list)
    answer: Callable[[], Answer] = Answer
    reply: Callable[[str, dict], Answer] = lambda path, body: Answer("no such route", 404)


@contextmanager
def metrics_server(*answers: Answer) -> Iterator[MetricsServer]:
    """A server on loopback that gives these answers in turn, the last one for ever."""
    left = list(answers)
    running = MetricsServer("", answer=lambda: left.pop(0) if len(left) > 1 else left[0])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            running.asked.append(dict(self.headers))
            self.give(running.answer())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.give(running.reply(self.path, body))

        def give(self, found):
            time.sleep(found.seconds)
            body = found.body.encode("utf-8", "surrogatepass")
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(body) if found.length is None else found.length))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                return

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    running.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def vllm_page(drafts, accepted, model="m", gamma=4, requests=0, aborted=0, started=1.7e9, slow=0):
    """A page of vLLM: every draft has `gamma` tokens; `slow` requests took up to 2.5 s, the others up to 1 s."""
    label = f'engine="0",model_name="{model}"'
    places = [accepted - min(accepted, place * accepted // gamma) for place in range(gamma)]
    spec = "vllm:spec_decode_num"
    lines = [
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.",
        f"{spec}_drafts_total{{{label}}} {float(drafts)}",
        f"{spec}_drafts_created{{{label}}} 1.7e+09",
        f"{spec}_draft_tokens_total{{{label}}} {float(drafts * gamma)}",
        f"{spec}_accepted_tokens_total{{{label}}} {float(accepted)}",
        *(
            f'{spec}_accepted_tokens_per_pos_total{{{label},position="{place}"}} {float(count)}'
            for place, count in enumerate(places)
        ),
        f'vllm:request_success_total{{{label},finished_reason="stop"}} {float(requests)}',
        f'vllm:request_success_total{{{label},finished_reason="abort"}} {float(aborted)}',
        f'vllm:e2e_request_latency_seconds_bucket{{{label},le="0.5"}} 0.0',
        f'vllm:e2e_request_latency_seconds_bucket{{{label},le="1.0"}} {float(requests - slow)}',
        f'vllm:e2e_request_latency_seconds_bucket{{{label},le="2.5"}} {float(requests)}',
        f'vllm:e2e_request_latency_seconds_bucket{{{label},le="+Inf"}} {float(requests)}',
        f"process_start_time_seconds {started}",
    ]
    return "\n".join(lines) + "\n"


def llama_page(drafts, accepted):
    """A page of llama.cpp's server, whose names have no label of the model."""
    return re.sub(
        r'engine="0",model_name="m",?|\\{engine="0",model_name="m"\\}', "", vllm_page(drafts, accepted)
    ).replace("vllm:", "llamacpp:")


def tensorrt_page(drafts, accepted):
    """The page of TensorRT-LLM, which counts no drafts, only their tokens."""
    name, label = "trtllm_spec_decode_num", 'engine_type="pytorch",model_name="m"'
    return (
        f"{name}_draft_tokens_total{{{label}}} {4.0 * drafts}\n"
        f"{name}_accepted_tokens_total{{{label}}} {float(accepted)}\n"
        f'trtllm_request_success_total{{{label},finished_reason="length"}} {drafts / 10}\n'
    )


def sglang_page(calls, accepted, *, gauge=False):
    """A page of SGLang after `calls` of the target, in requests of ten calls; `gauge` tells how long a draft is."""
    label, requests = 'model_name="s",engine_type="unified"', calls // 10
    lines = [
        f"sglang:spec_verify_calls_total{{{label}}} {float(calls)}",
        f"sglang:generation_tokens_total{{{label}}} {float(calls + accepted + requests)}",
        f'sglang:num_requests_total{{model_name="s"}} {float(requests)}',
        f"sglang:spec_accept_length{{{label}}} 1.0",
    ]
    return "\n".join(lines + [f"sglang:spec_num_draft_tokens{{{label}}} 5.0"] * gauge) + "\n"


SGLANG = """\
sglang:spec_accept_length{model_name="s",engine_type="unified"} 3.25
sglang:spec_accept_rate{model_name="s",engine_type="unified"} 0.56
sglang:spec_verify_calls_total{model_name="s",engine_type="unified"} 400.0
sglang:num_requests_total{model_name="s"} 12.0
"""
