"""Frames between processes, and scripts that are ended at their limits."""

import io

import numpy as np
import pytest

from engine.core.child import ChildStopped, Frame, Script, TruncatedStream, read, run_script, write


def written(*frames):
    stream = io.BytesIO()
    for frame in frames:
        write(stream, frame)
    return stream.getvalue()


def test_messages_come_back_in_order_with_their_arrays():
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    stream = io.BytesIO(written(Frame({"a": 1}, {"rows": rows, "none": np.empty((0, 3))}), Frame({"b": [2]})))
    first, second = read(stream), read(stream)
    assert first is not None
    assert second is not None
    assert (first.header, second.header) == ({"a": 1}, {"b": [2]})
    np.testing.assert_array_equal(first.arrays["rows"], rows)
    assert first.arrays["none"].shape == (0, 3)
    first.arrays["rows"][0] = 0  # a record's reduction writes into rows
    assert read(stream) is None


def test_a_slice_is_written_as_it_looks():
    rows = np.arange(12).reshape(3, 4)[:, ::2]
    found = read(io.BytesIO(written(Frame({}, {"rows": rows}))))
    assert found is not None
    np.testing.assert_array_equal(found.arrays["rows"], rows)


def test_a_stream_that_ends_inside_a_message_says_so():
    data = written(Frame({"a": 1}, {"rows": np.zeros(4)}))
    for cut in (3, 20, len(data) - 1):
        with pytest.raises(TruncatedStream):
            read(io.BytesIO(data[:cut]))


def test_a_length_that_cannot_be_is_damage():
    with pytest.raises(TruncatedStream):
        read(io.BytesIO(b"\xff" * 64))


STUBS = {
    "answers": "import json, sys\nprint(json.dumps([json.load(sys.stdin), sys.argv[1:]]))",
    "sleeps": "import time\ntime.sleep(60)",
    "grows": "held = bytearray(2**28)\nheld[::4096] = bytes([1]) * len(held[::4096])\nimport time\ntime.sleep(60)",
    "dies": "import sys\nsys.exit(7)",
    "babbles": "print('no document')",
}


@pytest.fixture
def stub(tmp_path):
    def made(name, **limits):
        (tmp_path / "stub.py").write_text(STUBS[name])
        return Script(str(tmp_path / "stub.py"), **{"seconds": 20, **limits})

    return made


def test_a_script_gets_its_job_and_gives_its_answer(stub):
    assert run_script(stub("answers"), {"n": [1]}, "one") == [{"n": [1]}, ["one"]]


@pytest.mark.parametrize(
    ("name", "limits", "ended"),
    [
        ("sleeps", {"seconds": 0.2}, ("time", 0)),
        ("grows", {"memory": 2**26}, ("memory", 0)),
        ("dies", {}, (None, 7)),
        ("babbles", {}, (None, 0)),
    ],
)
def test_a_script_without_an_answer_says_how_it_ended(stub, name, limits, ended):
    with pytest.raises(ChildStopped) as stopped:
        run_script(stub(name, **limits), {})
    assert (stopped.value.limit, stopped.value.code) == ended
