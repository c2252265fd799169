"""An OpenAI-compatible server over the native engine, with or without speculation, for tests.

Speaks as vLLM does where that goes beyond OpenAI: token ids, counters, counts per request.
"""

import contextlib
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Prompt
from engine.core.structured import constraint_of
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.record.trace import decode
from tests.http.calls import read_calls, read_messages, streamed_calls
from tests.http.script import Misdeed, Script

MODEL = "bundled"
SWITCH = "speculative.n_max"
"""Key of a body that turns drafts off with 0, as in llama.cpp."""
WORDS = {FinishReason.LENGTH: "length", FinishReason.EOS: "stop", FinishReason.STOP: "stop"}


@dataclass
class Engine:
    """A backend's target, alone or with a draft of `gamma` tokens, under `rule` where it samples.

    read: the prompt's tokens as the engine reads them; it reports those that it was sent.
    """

    backend: object
    gamma: int = 0
    rule: Protocol = Protocol.CHAIN
    fault: str | None = None
    read: Callable = tuple
    lock: threading.Lock = field(default_factory=threading.Lock)
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def _backend(self, sampling, plain):
        if plain or not self.gamma:
            return self.backend.arm(EngineSpec(Protocol.GREEDY if sampling.greedy else Protocol.GUMBEL, rows=1))
        rule = Protocol.GREEDY if sampling.greedy else self.rule
        level, fault = RecordLevel.FULL, self.fault
        plan = EngineSpec(rule, "draft_model", self.gamma, "draft", rows=1, level=level, fault=fault)
        return self.backend.arm(plan)

    def generate(self, prompt, sampling, seed, *, plain=False):
        """One generation, with its trace; `plain` without drafts."""
        with self.lock:
            engine = self._backend(sampling, plain)
            ids = engine.encode(prompt) if isinstance(prompt, Prompt) else tuple(prompt)
            (found,) = engine.generate([Request(f"r{seed}", self.read(ids), sampling, seed)])
            trace = decode(found.trace)
            trace = replace(trace, header=replace(trace.header, prompt=ids))
            self.drafts += int(np.count_nonzero(trace.n_drafted))
            self.drafted += int(trace.n_drafted.sum())
            self.accepted += trace.n_accepted
            return found, trace


@dataclass
class Settings:
    """What the server knows: `ids` names token ids, `scores` gives log-probabilities, `key` is the one it takes.

    disorder: the text of the last token of each pair comes first, as from a detokenizer that reads a step backwards.
    early: a stream gives so many tokens' text before their ids.
    loose: it ignores grammars.
    heard: the request as it reaches the engine.
    told: the log-probabilities of the answer's tokens, as it gives them.
    deaf: it drafts although a request turns drafts off.
    counts: it counts the prompt's tokens.
    template: arguments of the chat template that it sets by itself.
    versions: its version at each look; the last one stays.
    calls: how it reads calls out of answers to requests with tools (`tests.http.calls`); empty leaves them in the text.
    """

    ids: bool = True
    scores: bool = True
    key: str = ""
    disorder: bool = False
    early: int = 0
    loose: bool = False
    heard: Callable = dict
    told: Callable = list
    calls: str = ""
    counts: bool = True
    deaf: bool = False
    template: dict = field(default_factory=dict)
    versions: list = field(default_factory=lambda: ["0.0.test"])
    metrics: bool = True
    models: tuple = (MODEL,)
    fail: Script = field(default_factory=Script)
    seen: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    open: int = 0
    most_open: int = 0


def grammar_of(body):
    """The grammar in the words of OpenAI, of vLLM, of SGLang or of TensorRT-LLM."""
    form = body.get("response_format", {})
    if form.get("type") == "json_schema":
        return constraint_of({"json": form["json_schema"]["schema"]})
    return constraint_of(body["structured_outputs"]) if "structured_outputs" in body else None


def sampling_of(body):
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    values = {name: body[name] for name in names if name in body}
    most = body.get("max_completion_tokens", body.get("max_tokens", 16))
    more = {name: body[name] for name in ("ignore_eos", "min_tokens") if name in body}
    stops = {"stop": tuple(body.get("stop", ())), "stop_token_ids": tuple(body.get("stop_token_ids", ()))}
    return SamplingParams(max_new_tokens=most, **values, **more, **stops, structured=grammar_of(body))


@dataclass
class Reply:
    """One answer in all the forms that it can be sent in."""

    body: dict
    chat: bool
    found: object
    trace: object
    prompt: tuple
    settings: Settings
    pieces: list
    decode: object

    def choice(self, begin=0, end=None):
        """The choice of the tokens from `begin` to `end`."""
        whole = end is None
        end = len(self.found.tokens) if whole else end
        text = self.text() if whole else "".join(self.pieces[begin:end])
        told = {"index": 0, "finish_reason": None, "logprobs": self.logprobs(begin, end)}
        if self.settings.ids and self.body.get("return_token_ids"):
            told["token_ids"] = list(self.found.tokens[begin:end])
        role = {"message" if whole else "delta": {"role": "assistant", "content": text}}
        if whole and self.calls:
            role["message"] |= {"content": None, "tool_calls": self.calls}
        return {**told, **(role if self.chat else {"text": text})}

    @property
    def calls(self):
        """The calls of the whole answer, in OpenAI's form."""
        if not self.settings.calls or not self.body.get("tools") or self.body.get("tool_choice") == "none":
            return []
        return read_calls(self.text(), self.body["tools"])

    def ending(self):
        told = WORDS[self.found.finish_reason]
        if told == "stop" and self.calls and self.settings.calls != "stop":
            told = "tool_calls"
        return {"finish_reason": told, "stop_reason": self.stop_reason()}

    def stop_reason(self):
        if self.found.finish_reason is not FinishReason.STOP:
            return None
        last = self.found.tokens[-1]
        return last if last in self.body.get("stop_token_ids", ()) else self.body["stop"][0]

    def text(self):
        if self.settings.disorder:
            return "".join(self.pieces)
        # the engine shows a token of stop_token_ids, vLLM does not
        return self.decode(self.found.tokens[:-1]) if isinstance(self.stop_reason(), int) else self.found.text

    def logprobs(self, begin, end):
        asked = self.body.get("top_logprobs") if self.chat else self.body.get("logprobs")
        if not asked or not self.settings.scores:
            return None
        rows = self.trace.logits[begin:end].astype(np.float64)
        rows = rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
        tops = np.argsort(-rows, axis=-1)[:, :asked]
        names = [self.spelled(token) for token in self.found.tokens[begin:end]]
        values = [float(row[token]) for row, token in zip(rows, self.found.tokens[begin:end], strict=True)]
        values = self.settings.told(values)
        if self.chat:
            return {
                "content": [
                    {
                        "token": name,
                        "logprob": value,
                        "top_logprobs": [{"token": self.spelled(int(t)), "logprob": float(row[t])} for t in top],
                    }
                    for name, value, row, top in zip(names, values, rows, tops, strict=True)
                ]
            }
        listed = [{self.spelled(int(t)): float(row[t]) for t in top} for row, top in zip(rows, tops, strict=True)]
        return {"tokens": names, "token_logprobs": values, "top_logprobs": listed}

    def spelled(self, token):
        return self.decode([token])

    def rest(self):
        counts = {"completion_tokens": len(self.found.tokens)}
        counts |= {"prompt_tokens": len(self.prompt)} if self.settings.counts else {}
        return {"usage": counts, "metrics": self.metrics()}

    def metrics(self):
        drafted = int(self.trace.n_drafted.sum())
        if not drafted:
            return None
        told = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": self.trace.n_accepted}
        return {"speculative_decoding": {**told, "num_spec_steps": int(np.count_nonzero(self.trace.n_drafted))}}

    def head(self):
        told = {"id": "answer-1", "model": self.body["model"], "system_fingerprint": "test-1"}
        return told if not (self.settings.ids and self.chat) else {**told, "prompt_token_ids": list(self.prompt)}

    def whole(self):
        return json.dumps({**self.head(), "choices": [{**self.choice(), **self.ending()}], **self.rest()}).encode()

    def events(self):
        """Two tokens at a time, as a speculating server does."""
        last = self.text()
        parts = []
        sent = 0
        for begin in range(0, len(self.found.tokens), 2):
            end = min(begin + 2, len(self.found.tokens))
            choice = self.choice(begin, end)
            shown = self.pieces[: end + self.settings.early]
            upto = len(last) if end == len(self.found.tokens) else min(len("".join(shown)), len(last))
            said = last[sent:upto]
            sent = upto
            if self.chat:
                choice["delta"]["content"] = None if self.calls else said
            else:
                choice["text"] = said
            parts.append({**self.head(), "choices": [choice]})
        for delta in streamed_calls(self.calls, self.settings.calls):
            parts.append({**self.head(), "choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]})
        closing = {"index": 0, "delta": {}} if self.chat else {"index": 0, "text": ""}
        parts.append({**self.head(), "choices": [{**closing, **self.ending()}]})
        parts.append({**self.head(), "choices": [], **self.rest()})
        lines = [f"data: {json.dumps(each)}\n\n" for each in parts] + ["data: [DONE]\n\n"]
        return "".join(lines).encode()


class Handler(BaseHTTPRequestHandler):
    """`self.server` has `engine` and `settings`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        settings = self.server.settings
        if self.path == "/metrics" and settings.metrics:
            self.answer(200, self.counters().encode(), "text/plain")
        elif self.path == "/version":
            told = settings.versions.pop(0) if len(settings.versions) > 1 else settings.versions[0]
            self.answer(200, json.dumps({"version": told}).encode())
        elif not self.allowed():
            return
        elif self.path == "/v1/models":
            entries = [{"id": name, "owned_by": "test", "max_model_len": 1024} for name in settings.models]
            self.answer(200, json.dumps({"object": "list", "data": entries}).encode())
        else:
            self.answer(404, b'{"detail": "Not Found"}')

    def allowed(self):
        given = self.headers.get("Authorization", "")
        if not self.server.settings.key or given == f"Bearer {self.server.settings.key}":
            return True
        # some servers tell the key back
        told = {"error": {"message": f"Incorrect API key provided: {given.removeprefix('Bearer ')}"}}
        self.answer(401, json.dumps(told).encode())
        return False

    def counters(self):
        engine = self.server.engine
        lines = ['vllm:num_requests_running{engine="0"} 0.0']
        if engine.gamma:
            names = {"drafts": engine.drafts, "draft_tokens": engine.drafted, "accepted_tokens": engine.accepted}
            lines += [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {float(n)}' for name, n in names.items()]
        return "\n".join(["# HELP x y", *lines]) + "\n"

    def do_POST(self):
        settings = self.server.settings
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        settings.seen.append(body)
        misdeed = settings.fail.next()
        with self.server.lock:
            settings.open += 1
            settings.most_open = max(settings.most_open, settings.open)
        try:
            self.post(body, misdeed)
        finally:
            with self.server.lock:
                settings.open -= 1

    def post(self, body, misdeed):
        time.sleep(misdeed.pause_s)
        if misdeed.status != 200:
            self.answer(misdeed.status, misdeed.text.encode(), headers=misdeed.headers)
        elif body.get("model", MODEL) not in self.server.settings.models:
            self.answer(404, b'{"error": {"message": "The model does not exist."}}')
        else:
            reply = self.reply(body)
            content = reply.events() if body.get("stream") else reply.whole()
            if misdeed.swap:
                content = content.replace(*(each.encode() for each in misdeed.swap), misdeed.times)
            kind = "text/event-stream" if body.get("stream") else "application/json"
            self.misdo(content, kind, misdeed)

    def reply(self, body):
        chat = self.path.endswith("/chat/completions")
        settings = self.server.settings
        template = {**body.get("chat_template_kwargs", {}), **settings.template}
        asked = body.get("prompt")
        if chat:
            asked = Prompt(read_messages(body["messages"]), tuple(body.get("tools", ())), template=template)
        asked = Prompt(text=asked) if isinstance(asked, str) else asked
        sampling = sampling_of(self.server.settings.heard(body))
        if self.server.settings.loose:
            sampling = replace(sampling, structured=None)
        with self.server.lock:
            self.server.unseeded += 1
            seed = body.get("seed", self.server.unseeded)
        plain = body.get(SWITCH) == 0 and not settings.deaf
        found, trace = self.server.engine.generate(asked, sampling, seed, plain=plain)
        decoded = self.server.decode
        # what each token adds to the text: a character of several tokens comes with its last
        count = len(found.tokens)
        texts = ["", *(decoded(found.tokens[:n]).rstrip("" if n == count else "\ufffd") for n in range(1, count + 1))]
        pieces = [text[len(before) :] for before, text in itertools.pairwise(texts)]
        if self.server.settings.disorder:
            pieces = [piece for at in range(0, len(pieces), 2) for piece in reversed(pieces[at : at + 2])]
        return Reply(body, chat, found, trace, trace.header.prompt, self.server.settings, pieces, decoded)

    def misdo(self, content, kind, misdeed: Misdeed):
        if misdeed.cut is not None:
            content = content[: misdeed.cut]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in misdeed.headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if misdeed.reset is not None:
                self.wfile.write(content[: misdeed.reset])
                self.wfile.flush()
                # with linger 0 the connection is reset, not closed
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
            elif misdeed.drip_s:
                for at in range(0, len(content), misdeed.piece):
                    self.wfile.write(content[at : at + misdeed.piece])
                    self.wfile.flush()
                    time.sleep(misdeed.drip_s)
            else:
                self.wfile.write(content)

    def answer(self, status, content, kind="application/json", headers=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, engine, settings, decode, handler=Handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.engine, self.settings, self.decode = engine, settings, decode
        self.lock = threading.Lock()
        self.unseeded = 0

    def handle_error(self, request, client_address):
        """Clients that went away are part of the tests."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextlib.contextmanager
def serving(backend, decode, gamma=0, rule=Protocol.CHAIN, fault=None, read=tuple, handler=Handler, **settings):
    """A server in this process, on a free port."""
    server = Server(Engine(backend, gamma, rule, fault, read), Settings(**settings), decode, handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        # answers that nobody waits for any more: a process that ends within one is aborted by torch
        until = time.monotonic() + 30
        while server.settings.open and time.monotonic() < until:
            time.sleep(0.01)
