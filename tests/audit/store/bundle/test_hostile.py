"""Files that only look like bundles: refused in one line that names the part, and nothing is written."""

from __future__ import annotations

import random
import stat
import warnings
import zipfile

import pytest
import zstandard

from audit.store import verified_bundle
from audit.store.bundle import archive
from audit.store.tables.foreign_values import MAPPINGS, WORDS
from tests.audit.invoke import invoke
from tests.audit.store.build import made_store
from tests.audit.store.bundle.build import edited, exported, parts_of, restated, zipped

RUN, REQUEST = "tables/run.jsonl", "tables/request.jsonl"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    return exported(made_store(folder), folder / "run.zip")


def refused(path, tmp_path):
    """The message of both commands, which write nothing."""
    target = tmp_path / "target" / "audit.db"
    messages = set()
    for arguments in (("verify", str(path)), ("import", str(path), "--store", str(target))):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert (result.stdout, len(result.stderr.splitlines())) == ("", 1)
        assert result.stderr.rstrip("\n").isprintable()
        messages.add(result.stderr)
    assert not target.parent.exists()
    (message,) = messages
    return message


NAMES = (
    *("../../etc/passwd", "/etc/passwd", "C:\\x.jsonl", "tables\\run.jsonl", "tables/../run.jsonl", "tables/"),
    *("tables/run; DROP TABLE run.jsonl", "tables/r\u0438n.jsonl", "tables/\x1b[2J.jsonl", "tables/RUN.jsonl"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_another_name_is_refused(bundle, tmp_path, name):
    path = zipped(tmp_path / "x.zip", parts_of(bundle) | {name: b"{}\n"})
    assert "no part of a bundle has this name" in refused(path, tmp_path)


def test_a_name_that_is_not_utf8_is_refused(bundle, tmp_path):
    path = zipped(tmp_path / "x.zip", parts_of(bundle) | {"tables/\u00e9.jsonl": b""})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xfe"))
    refused(path, tmp_path)


def test_links_duplicates_and_too_many_parts_are_refused(bundle, tmp_path):
    parts = parts_of(bundle)
    link = tmp_path / "link.zip"
    with zipfile.ZipFile(link, "w") as made:
        info = zipfile.ZipInfo(RUN)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(info, "/etc/passwd")
    assert "not a regular file" in refused(link, tmp_path)
    twice = zipped(tmp_path / "twice.zip", parts)
    with warnings.catch_warnings(), zipfile.ZipFile(twice, "a") as made:
        warnings.simplefilter("ignore")
        made.writestr(RUN, parts[RUN])
    assert "stands twice" in refused(twice, tmp_path)
    more = {f"tables/{letter * length}.jsonl": b"" for letter in "ab" for length in range(1, 60)}
    assert "at most 100" in refused(zipped(tmp_path / "many.zip", parts | more), tmp_path)


@pytest.mark.medium
def test_missing_unknown_and_changed_parts_are_named(bundle, tmp_path):
    parts = parts_of(bundle)
    path = tmp_path / "x.zip"
    for name in parts:
        message = refused(zipped(path, {key: value for key, value in parts.items() if key != name}), tmp_path)
        assert f"{name}: is missing" in message
    without = {key: value for key, value in parts.items() if key != REQUEST}
    assert f"{REQUEST}: is missing" in refused(zipped(path, restated(without)), tmp_path)
    assert "tables/more.jsonl: is not in the manifest" in refused(
        zipped(path, parts | {"tables/more.jsonl": b""}), tmp_path
    )
    assert "tables/more.jsonl: is unknown" in refused(
        zipped(path, restated(parts | {"tables/more.jsonl": b""})), tmp_path
    )
    changed = parts | {REQUEST: parts[REQUEST].replace(b"case-a", b"case-x")}
    assert f"{REQUEST}: its content does not have the digest" in refused(zipped(path, changed), tmp_path)


@pytest.mark.medium
def test_other_versions_are_refused_with_what_helps(bundle, tmp_path):
    parts = parts_of(bundle)
    path = tmp_path / "x.zip"
    assert "format 2, this version of audit reads 1" in refused(zipped(path, restated(parts, bundle=2)), tmp_path)
    for revision in ("9999", "0016", "", "latest", "0005; DROP TABLE run"):
        message = refused(zipped(path, restated(parts, revision=revision)), tmp_path)
        assert "this version of audit reads 0001: export the run again" in message
    assert "not the one finished run" in refused(zipped(path, restated(parts, run="0" * 26)), tmp_path)
    assert "record root is not the run's" in refused(zipped(path, restated(parts, record_root="0" * 64)), tmp_path)


LINES = {
    "NaN": (b'{"a":NaN}\n', "not canonical"),
    "a huge number": (b"9" * 5000 + b"\n", "digits"),
    "an overflow": (b"[1e999]\n", "not canonical"),
    "deep nesting": (b"[" * 100_000 + b"]" * 100_000 + b"\n", "nested too deeply"),
    "no JSON": (b"{\n", "Expecting"),
    "not ASCII": (b'"\xff"\n', "decode"),
    "a key twice": (b'{"a":1,"a":2}\n', "not canonical"),
    "no object": (b"[]\n", "no JSON object"),
    "other columns": (b'{"a":1}\n', "column 'a' is unknown"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_row_is_refused(bundle, tmp_path, name):
    line, reason = LINES[name]
    parts = parts_of(bundle)
    message = refused(zipped(tmp_path / "x.zip", restated(parts | {REQUEST: line}), kind=zipfile.ZIP_STORED), tmp_path)
    assert f"{REQUEST}:1: " in message
    assert reason in message


VALUES = {
    "an integer beyond 64 bits": ("request", {"n_output": 2**63}, "beyond 64 bits"),
    "text for a number": ("request", {"n_output": "1"}, "where int belongs"),
    "true for a number": ("request", {"n_output": True}, "where int belongs"),
    "a number for text": ("request", {"case_id": 1}, "where str belongs"),
    "null where a value must be": ("request", {"case_id": None}, "is null"),
    "a lone surrogate": ("request", {"case_id": "\ud800"}, "no store holds"),
    "a longer digest": ("request", {"record_hash": "0" * 65}, "longer than 64"),
    "another arm": ("request", {"arm_id": 99}, "FOREIGN KEY"),
    "another id": ("request", {"id": 7}, "its id is not 1"),
    "no base 64": ("token_trace", {"payload": "%"}, "not base 64"),
    **{
        f"an unknown {column} of {table}": (table, {column: "L9"}, "'L9' is no word of this version")
        for table, column in WORDS
    },
    **{f"{column} of {table} as a list": (table, {column: []}, "no JSON object") for table, column in sorted(MAPPINGS)},
    "a run that goes on": ("run", {"status": "running"}, "not the one finished run"),
    "a local time": ("run", {"started_at": "2026-01-01T00:00:00"}, "not a moment in UTC"),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_another_kind_is_refused(bundle, tmp_path, name):
    table, change, reason = VALUES[name]
    message = refused(edited(bundle, table, lambda rows: rows[0].update(change)), tmp_path)
    assert f"tables/{table}.jsonl" in message
    assert reason in message


@pytest.mark.medium
def test_values_nested_deeper_than_any_setting_are_refused(bundle, tmp_path):
    value = []
    for _ in range(100):
        value = [value]
    assert "nested deeper" in refused(edited(bundle, "arm", lambda rows: rows[0].update(spec={"a": value})), tmp_path)


def test_a_bomb_is_refused_before_it_is_unpacked(bundle, tmp_path, monkeypatch):
    parts = parts_of(bundle)
    path = zipped(tmp_path / "x.zip", restated(parts | {REQUEST: b"\n" * 2**24}))
    assert "more than 200 times its size" in refused(path, tmp_path)
    monkeypatch.setattr(archive, "TOTAL_BYTES", 1000)
    assert "archive: unpacks to more than" in refused(bundle, tmp_path)


def test_a_part_that_is_longer_than_it_states_is_refused(bundle, tmp_path):
    """The central directory states 10 bytes; the member holds more."""
    path, size = tmp_path / "x.zip", 0x12345
    zipped(path, parts_of(bundle) | {REQUEST: random.Random(1).randbytes(size)}, kind=zipfile.ZIP_STORED)
    raw, stated = path.read_bytes(), size.to_bytes(4, "little")
    # both sizes, packed and unpacked, in the member's own header and in the central directory
    assert raw.count(stated) == 4
    path.write_bytes(raw.replace(stated * 2, stated + (10).to_bytes(4, "little")))
    assert REQUEST in refused(path, tmp_path)


@pytest.mark.medium
def test_a_trace_that_is_a_bomb_is_refused(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(verified_bundle, "TRACE_BYTES", 100)
    assert "tables/token_trace.jsonl:1: a trace that unpacks" in refused(bundle, tmp_path)
    stream = zstandard.ZstdCompressor().compressobj()
    payload = b"SATRACE5" + stream.compress(b"\0" * 1000) + stream.flush()
    assert verified_bundle._unpacked_bytes(payload) > 100


@pytest.mark.medium
def test_a_truncated_file_is_refused_at_every_part(bundle, tmp_path):
    raw = bundle.read_bytes()
    with zipfile.ZipFile(bundle) as made:
        places = [0, 1, 3, len(raw) - 1, len(raw) - 20]
        places += [place for info in made.infolist() for place in (info.header_offset, info.header_offset + 40)]
    path = tmp_path / "x.zip"
    for place in places:
        path.write_bytes(raw[:place])
        assert "not a whole zip file" in refused(path, tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder.zip").mkdir()
    assert "not a file" in refused(tmp_path / "folder.zip", tmp_path)
    assert "no such file" in refused(tmp_path / "none.zip", tmp_path)
    assert "is missing: this is no bundle" in refused(zipped(tmp_path / "x.zip", {}), tmp_path)


@pytest.mark.slow
def test_a_flipped_byte_is_never_taken_for_the_same_run(bundle, tmp_path):
    raw, parts, path = bundle.read_bytes(), parts_of(bundle), tmp_path / "flipped.zip"
    rng, passed = random.Random(20261123), 0
    for _ in range(500):
        content = bytearray(raw)
        content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(content)
        result = invoke("verify", str(path))
        assert result.exit_code in (0, 1, 2), result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if result.exit_code == 0:
            passed += 1
            with zipfile.ZipFile(path) as made:
                assert {info.filename: made.read(info) for info in made.infolist()} == parts
    # dates and modes of the archive are no content
    assert passed < 100
