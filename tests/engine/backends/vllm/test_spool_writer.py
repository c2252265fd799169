import threading

import numpy as np
import pytest

from engine.backends.vllm.hooks import spool_writer
from engine.backends.vllm.hooks.spool_writer import WAITING, SpoolWriter
from engine.core.child import Frame, read

LIMIT = 20


def steps(path):
    with path.open("rb") as stream:
        return [(frame.header["step"], frame.arrays["rows"].tolist()) for frame in iter(lambda: read(stream), None)]


def test_what_was_flushed_is_in_the_file_in_order(tmp_path):
    writer = SpoolWriter(str(tmp_path / "spool"))
    wanted = [(step, [[step, 0.5]]) for step in range(3 * WAITING)]
    for step, rows in wanted:
        writer.put(Frame({"step": step}, {"rows": np.array(rows)}))
    writer.flush()
    assert steps(tmp_path / "spool") == wanted
    writer.put(Frame({"step": -1}, {"rows": np.empty((0, 2))}))
    writer.close()
    assert steps(tmp_path / "spool") == [*wanted, (-1, [])]
    assert writer.failure is None


@pytest.mark.parametrize(
    ("path", "header", "told"),
    [("/dev/full", {}, "No space left on device"), ("/dev/null", {"step": object()}, "TypeError")],
)
def test_a_failure_is_told_and_nobody_waits_for_ever(path, header, told):
    writer = SpoolWriter(path)

    def use():
        for _ in range(2 * WAITING):
            writer.put(Frame(header, {"rows": np.ones((4, 4))}))
        writer.flush()

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(LIMIT)
    assert not user.is_alive()
    assert writer.failure is not None
    assert told in writer.failure


def test_rows_that_wait_are_bounded_by_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(spool_writer, "MOST_BYTES", 64)
    most, waiting = 0, 0

    def reduced(frame):
        nonlocal most
        most = max(most, waiting)
        return Frame(frame.header, {"rows": frame.arrays["rows"][:, :1]})

    writer = SpoolWriter(str(tmp_path / "spool"), reduced)
    for step in range(20):
        waiting = writer._given - writer._written
        writer.put(Frame({"step": step}, {"rows": np.full((1, 4), float(step))}))
    writer.close()
    assert most <= 64
    assert steps(tmp_path / "spool") == [(step, [[step]]) for step in range(20)]


def test_a_step_that_cannot_be_reduced_is_told(tmp_path):
    writer = SpoolWriter(str(tmp_path / "spool"), lambda frame: frame.arrays["masks"])
    writer.put(Frame({"step": 0}, {"rows": np.ones((1, 4))}))
    writer.close()
    assert "KeyError: 'masks'" in writer.failure
