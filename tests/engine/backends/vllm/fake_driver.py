"""`python -m tests.engine.backends.vllm.fake_driver`: speaks like the driver, without an engine.

What a request's prompt begins with says what happens to it.
"""

import os
import sys
import time

from engine.core.child import Frame, read, write

KILLS, HANGS, REFUSED, ABORTED, FAILS = 660, 661, 662, 663, 664


def say(**header):
    write(sys.stdout.buffer, Frame(header))


def answer(request):
    first = request["prompt"][0]
    if first == KILLS:
        sys.stderr.write("Traceback (most recent call last):\n  RuntimeError: no room for it\nEngineDeadError: dead\n")
        sys.stderr.flush()
        os._exit(1)
    if first == HANGS:
        time.sleep(60)
    if first == FAILS:
        say(op="died", kind="EngineDeadError", message="see above")
        os._exit(0)
    if first == REFUSED:
        say(op="refused", id=request["id"], message="we have no min_p")
        return
    say(
        op="output",
        id=request["id"],
        tokens=request["prompt"],
        text="",
        finish_reason="abort" if first == ABORTED else "length",
        stop_reason=None,
        logprobs=[-1.0] * len(request["prompt"]),
        steps=None,
        cached_tokens=0,
        latency_us=1,
    )


def main():
    first = read(sys.stdin.buffer)
    if first.header["repair"] == "fail":
        say(op="failed", kind="ValueError", message="no such thing")
        return
    say(op="started", facts={"pid": os.getpid()})
    while (frame := read(sys.stdin.buffer)) is not None:
        for request in frame.header["requests"]:
            answer(request)
        say(op="done", counters={}, problems=[], seconds=0.0)


if __name__ == "__main__":
    main()
