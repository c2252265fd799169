import threading

import numpy as np
import pytest

from engine.backends.vllm.frames import Frame, read
from engine.backends.vllm.hooks.spool_writer import WAITING, SpoolWriter

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
