"""Outputs: devices and pipes stay what they are, folders are refused, and no temporary file outlives a failure."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading

import pytest

from audit.errors import UserError
from audit.store.base.keys import init
from audit.store.bundle.archive import writing
from audit.text import staged_files
from audit.text.staged_files import require_writable, staged
from tests.audit.invoke import invoke


def write(path, content=b"content"):
    with staged({path: content}):
        pass


def test_a_device_is_written_through(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("this user or file system has no devices")
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


def test_a_pipe_with_a_reader_gets_everything_and_stays_a_pipe(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    # a writer does not wait for a reader
    while True:
        with contextlib.suppress(UserError):
            write(pipe, b"x" * 200_000)
            break
    reader.join(10)
    assert received == [b"x" * 200_000]
    assert pipe.is_fifo()


@pytest.mark.parametrize("kind", ["folder", "pipe", "open file", "NUL", "long"])
def test_a_place_that_keeps_no_file_is_refused_in_one_line_before_anything_is_written(tmp_path, kind):
    place = tmp_path / kind
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "NUL":
        place = tmp_path / "a\0b"
    elif kind == "long":
        place = tmp_path / ("a" * 300)
    before = sorted(tmp_path.iterdir())
    with (tmp_path.parent / f"{tmp_path.name}-open").open("w") as stream:
        if kind == "open file":
            place = tmp_path / f"/dev/fd/{stream.fileno()}"
        for attempt in (write, require_writable):
            with pytest.raises(UserError) as caught:
                attempt(place)
            assert "\n" not in str(caught.value)
    with pytest.raises(UserError), staged({tmp_path / "other": b"new", place: b"new"}):
        raise AssertionError("the body ran")
    assert sorted(tmp_path.iterdir()) == before


class Full:
    """A file on a full disk: it takes some bytes and then no more."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def write(self, content):
        self._stream.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_temporary_file(tmp_path, monkeypatch):
    path, opened = tmp_path / "report.json", os.fdopen
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(staged_files.os, "fdopen", lambda handle, mode: Full(opened(handle, mode)))
        with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
            write(path)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("report.json", b"old")]


def test_results_are_refused_before_the_suite_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = invoke("run", "no-such-suite", "--results", str(pipe), "--store", str(tmp_path / "audit.db"))
    assert refused.exit_code == 2
    assert refused.stderr == f"audit: {pipe}: cannot be written (nobody reads this pipe); choose another place\n"
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_bundle_never_replaces_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "run.zip")
    with pytest.raises(UserError, match="is no file"), writing(tmp_path / "run.zip"):
        pass
    assert (tmp_path / "run.zip").is_fifo()


def test_a_key_without_its_public_half_is_not_left_behind(tmp_path):
    (tmp_path / "key.pub").symlink_to(tmp_path / "none" / "key.pub")
    with pytest.raises(UserError):
        init(tmp_path / "key", "example.org/audit")
    assert [path.name for path in tmp_path.iterdir()] == ["key.pub"]
