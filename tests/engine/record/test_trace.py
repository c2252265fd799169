"""A trace's bytes: round trip, equality, damage."""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import pickle

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Role, SamplingParams
from engine.record.container import pack, sealed, unpack
from engine.record.envelope import MAGIC, PACKED, READABLE, digest, opened, unwrap, wrap
from engine.record.further_columns import LACKING, WHOLE_ROWS
from engine.record.keyed import KEYED
from engine.record.late import late
from engine.record.row_digests import DigestKind
from engine.record.trace import STORED, Trace, TraceHeader, decode, decoded, encode, steps_of
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=12, seed=4, top_p=0.9)
COLUMNS = [field.name for field in dataclasses.fields(Trace) if field.name != "header"]


def made(level=RecordLevel.FULL, protocol=Protocol.CHAIN, sampling=SAMPLED) -> bytes:
    return generate(Setup(level=level, protocol=protocol), requests(2, sampling))["r1"].trace


@pytest.fixture(scope="module")
def data():
    return made()


def same(first: Trace, second: Trace) -> bool:
    return first.header == second.header and all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True)
        and getattr(first, name).dtype == getattr(second, name).dtype
        for name in COLUMNS
    )


@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("protocol", list(Protocol))
def test_bytes_and_trace_are_the_same_thing(level, protocol):
    data = made(level, protocol)
    trace = decode(data)
    assert trace.header.level is level
    assert encode(trace) == data
    assert same(decode(encode(trace)), trace)


def test_equal_traces_give_equal_bytes_at_any_time(data, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    assert encode(decode(data)) == data


def test_the_header_round_trips_with_every_field_set():
    sampling = SamplingParams(
        temperature=0.3,
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias=((3, -1.5), (4, 2.0)),
        bad_words=((1,), (2, 3)),
        min_tokens=1,
        max_new_tokens=9,
        stop=('"', "\n\u65e5", "\ud800"),
        stop_token_ids=(5, 6),
        ignore_eos=True,
        seed=2**63 - 1,
    )
    header = TraceHeader(
        request='a"b\n',
        level=RecordLevel.TOPK,
        protocol=Protocol.GUMBEL,
        lossless=False,
        proposer="x",
        vocabulary=8,
        stream=2**64 - 1,
        sampling=sampling,
        eos_ids=(1, 2),
        finish_reason=FinishReason.STOP,
        prompt=(0, 7),
        coupled_draft=True,
    )
    assert set(dataclasses.asdict(SamplingParams())) - {"structured"} == {
        name for name, value in dataclasses.asdict(sampling).items() if value != getattr(SamplingParams(), name)
    }, "every field is away from its default"
    trace = dataclasses.replace(decode(made()), header=header)
    assert decode(encode(trace)).header == header


@pytest.mark.parametrize("name", COLUMNS)
def test_the_digest_depends_on_every_column(data, name):
    trace = decode(data)
    column = getattr(trace, name)
    if column.size == 0:
        changed = np.ones((1, *column.shape[1:]), dtype=column.dtype)
    else:
        changed = column.copy()
        flat = changed.reshape(-1)
        flat[-1] = 0 if flat[-1] != 0 else 1
    other = dataclasses.replace(trace, **{name: changed})
    assert digest(encode(other)) != digest(data)


@pytest.mark.parametrize(
    "change",
    [{"request": "other"}, {"lossless": False}, {"stream": 1}, {"eos_ids": (3,)}, {"prompt": (1,)}, {"proposer": "x"}],
)
def test_the_digest_depends_on_the_header(data, change):
    trace = decode(data)
    other = dataclasses.replace(trace, header=dataclasses.replace(trace.header, **change))
    assert digest(encode(other)) != digest(data)


def test_the_digest_outlives_another_compressor(data):
    again = MAGIC + zstandard.ZstdCompressor(level=19).compress(unwrap(data))
    assert again != data
    assert digest(again) == digest(data)
    assert same(decode(again), decode(data))


@pytest.mark.parametrize("keep", [0, 4, 7, 8, 9, 20, 0.5, 0.9, -1])
def test_a_truncated_trace_is_refused(data, keep):
    end = int(keep * len(data)) if isinstance(keep, float) else keep
    for read in (decode, digest):
        with pytest.raises(TraceError):
            read(data[:end])


@pytest.mark.medium
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_flipped_bit_is_refused_or_changes_nothing(data, drawn):
    at, bit = drawn.draw(st.integers(0, len(data) - 1)), drawn.draw(st.integers(0, 7))
    broken = bytearray(data)
    broken[at] ^= 1 << bit
    try:
        found = decode(bytes(broken))
    except TraceError:
        return
    assert same(found, decode(data))


def test_the_frame_may_not_claim_an_absurd_size(data):
    """Byte 4 of a zstandard frame says how its size is written; a few flips make it huge."""
    refused = 0
    for flags in range(256):
        broken = data[: len(MAGIC) + 4] + bytes([flags]) + data[len(MAGIC) + 5 :]
        try:
            digest(broken)
        except TraceError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("data", [b"", b"hello", b"SATRACE0", *READABLE, MAGIC + b"\x00\x00"])
def test_what_is_no_trace_is_refused(data):
    with pytest.raises(TraceError):
        decode(data)


OLD = READABLE[len(PACKED)]


def archive(magic=OLD, **columns):
    """A trace as the versions before 7 wrote it."""
    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    return magic + zstandard.ZstdCompressor().compress(buffer.getvalue())


def old_header(data):
    """The header as versions before 10 wrote it; their digests are of BLAKE2b."""
    header = unpack(unwrap(data)).document["header"]
    assert header.pop("digest_kind") == "blake3"
    return header


def old_trace(data):
    """The trace that these versions would have written."""
    trace = decode(data)
    return dataclasses.replace(trace, header=dataclasses.replace(trace.header, digest_kind=DigestKind.BLAKE2B))


def columns_of(data):
    """All columns of a trace and its header, as the members of an archive."""
    trace = decode(data)
    header = json.dumps(old_header(data)).encode()
    columns = {name: getattr(trace, name) for name in COLUMNS if name not in LACKING[OLD]}
    return columns | {"header": np.frombuffer(header, dtype=np.uint8)}


def test_missing_and_unknown_columns_of_archives_are_refused(data):
    columns = columns_of(data)
    assert same(decode(archive(**columns)), old_trace(data))
    for broken in ({k: v for k, v in columns.items() if k != "margin"}, columns | {"extra": columns["token"]}):
        with pytest.raises(TraceError, match="damaged trace"):
            decode(archive(**broken))
    for header in (b"[]", b"{}", b"not json", b"\xff"):
        with pytest.raises(TraceError, match="damaged trace"):
            decode(archive(**columns | {"header": np.frombuffer(header, dtype=np.uint8)}))


def test_missing_and_unknown_columns_are_refused(data):
    found = unpack(unwrap(data))
    assert same(decode(wrap(pack(found.document, found.columns, WHOLE_ROWS))), decode(data))
    without = {name: column for name, column in found.columns.items() if name != "margin"}
    whole = found.columns | {"token": decode(data).token}
    more = found.columns | {"extra": found.columns["token"]}
    for document, columns in (
        (found.document, without),
        (found.document, more),
        (found.document | {"header": {}}, found.columns),
        (found.document | {"header": []}, found.columns),
        (found.document | {"keyed": ["token"]}, found.columns),
        (found.document | {"keyed": [*found.document["keyed"], "margin"]}, found.columns),
        (found.document | {"once": ["margin"]}, found.columns),
        (found.document | {"once": [*found.document["once"], "token", "p"][:1]}, whole),
        (found.document | {"more": 1}, found.columns),
    ):
        with pytest.raises(TraceError, match="damaged trace"):
            decode(wrap(pack(document, columns, WHOLE_ROWS)))


@pytest.mark.medium
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_changed_content_is_refused_or_another_trace(data, drawn):
    """Under a checksum that fits: the reader itself must never fail in another way."""
    raw = bytearray(unwrap(data))
    for _ in range(drawn.draw(st.integers(1, 4))):
        raw[drawn.draw(st.integers(0, min(len(raw) - 1, 4000)))] = drawn.draw(st.integers(0, 255))
    with contextlib.suppress(TraceError):
        decode(wrap(sealed(bytes(raw[4:]))))
    with contextlib.suppress(TraceError):
        decode(wrap(sealed(bytes(raw[4 : drawn.draw(st.integers(4, len(raw)))]))))


def test_numbers_of_keys_are_not_stored_and_others_are(data):
    trace = decode(data)
    assert unpack(unwrap(data)).document["keyed"] == ["node_uniform", "examined_uniform", "uniform"]
    for name in ("node_uniform", "examined_uniform", "uniform"):
        column = getattr(trace, name).copy()
        at = int(np.flatnonzero(~np.isnan(column))[-1])
        column[at] = np.nextafter(column[at], 2.0)
        found = encode(dataclasses.replace(trace, **{name: column}))
        assert name not in unpack(unwrap(found)).document["keyed"]
        assert np.array_equal(getattr(decode(found), name), column, equal_nan=True)


def test_values_of_accepted_tokens_are_stored_with_the_draft(data):
    trace, found = decode(data), unpack(unwrap(data))
    accepted = trace.role == Role.ACCEPTED
    assert 0 < accepted.sum() < len(accepted)
    assert found.document["once"] == ["token", "p"]
    assert len(found.columns["p"]) == len(found.columns["token"]) == (~accepted).sum()
    for name, other in (("p", np.nextafter(trace.p, 2.0)), ("token", trace.token ^ 1)):
        column = np.where(np.arange(len(accepted)) == np.flatnonzero(accepted)[-1], other, getattr(trace, name))
        changed = encode(dataclasses.replace(trace, **{name: column}))
        assert name not in unpack(unwrap(changed)).document["once"]
        assert np.array_equal(getattr(decode(changed), name), column)


def test_a_trace_of_version_7_is_read(data):
    """It holds every column whole."""
    trace, found = old_trace(data), unpack(unwrap(data))
    document = {"keyed": found.document["keyed"], "header": old_header(data)}
    columns = {name: getattr(trace, name) for name in found.columns}
    old = b"SATRACE7" + wrap(pack(document, columns, WHOLE_ROWS))[len(MAGIC) :]
    assert same(decode(old), trace)
    with pytest.raises(TraceError, match="damaged trace"):
        decode(b"SATRACE7" + data[len(MAGIC) :])


@pytest.mark.parametrize("version", [b"SATRACE8", b"SATRACE9"])
def test_a_trace_of_version_8_or_9_is_read_with_the_digests_of_its_time(data, version):
    found = unpack(unwrap(data))
    document = found.document | {"header": old_header(data)}
    old = version + wrap(pack(document, found.columns, WHOLE_ROWS))[len(MAGIC) :]
    assert same(decode(old), old_trace(data))
    assert opened(old).number == int(version[-1:])
    assert opened(data).number == 10
    assert same(decode(encode(decode(old))), old_trace(data)), "written again it keeps its digests"
    with pytest.raises(TraceError, match="damaged trace"):
        decode(version + data[len(MAGIC) :])


def test_a_reader_may_name_the_columns_that_it_needs(data):
    whole, bare = decode(data), opened(data)
    for only in (STORED, frozenset(("token", "p", "role")), frozenset(("logprob",))):
        partly = decoded(bare, only=only)
        assert partly.header == whole.header
        for name in only:
            column = getattr(whole, name)
            assert np.array_equal(getattr(partly, name), column, equal_nan=column.dtype.kind == "f") or not column.size
        assert not any(len(getattr(partly, name)) for name in KEYED)


@pytest.mark.parametrize("version", [each for each in LACKING if each not in PACKED])
def test_a_trace_of_an_older_version_is_read_with_empty_columns(data, version):
    """An older version is an archive without some columns, under its own number."""
    missing = {name: getattr(decode(data), name) for name in LACKING[version]}
    columns = {name: column for name, column in columns_of(data).items() if name not in missing}
    old = archive(version, **columns)
    assert all(len(getattr(decode(old), name)) == 0 for name in missing)
    assert same(dataclasses.replace(decode(old), **missing), old_trace(data))
    raw = zstandard.ZstdDecompressor().decompress(old[8:])
    assert digest(old) == hashlib.sha256(version + raw).hexdigest(), "as that version computed it"
    whole = [archive(version, **columns_of(data))] if set(missing) - set(LACKING[OLD]) else []
    for wrong in (archive(MAGIC, **columns), *whole):
        with pytest.raises(TraceError, match="damaged trace"):
            decode(wrong)


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle was executed",))


def test_no_pickle_is_ever_read(data, capsys):
    columns = columns_of(data)
    columns["margin"] = np.array([Bomb()], dtype=object)
    with pytest.raises(TraceError):
        decode(archive(**columns))
    for magic in (OLD, *PACKED):
        with pytest.raises(TraceError):
            decode(magic + zstandard.ZstdCompressor().compress(pickle.dumps(Bomb())))
    assert capsys.readouterr().out == ""


def test_steps_partition_every_column(data):
    trace = decode(data)
    views = list(steps_of(trace))
    assert len(views) == trace.steps
    for name, total in (("nodes", trace.node_token), ("examined", trace.examined_node), ("emitted", trace.token)):
        covered = [i for view in views for i in range(getattr(view, name).start, getattr(view, name).stop)]
        assert covered == list(range(len(total)))
    assert [view.position for view in views] == trace.position.tolist()
    assert {view.q_kind for view in views} <= set(QKind)


def test_numbers_that_are_no_numbers_survive(data):
    trace = decode(data)
    odd = trace.margin.copy()
    odd[:3] = [math.nan, math.inf, -0.0]
    back = decode(encode(dataclasses.replace(trace, margin=odd))).margin
    assert math.isnan(back[0])
    assert back[1] == math.inf
    assert math.copysign(1, back[2]) == -1


def test_a_late_trace_is_read_once_and_only_for_its_columns(data):
    whole, reads = decode(data), []

    def read():
        reads.append(1)
        return data

    trace = late(whole.header, read)
    assert (trace.header, reads) == (whole.header, [])
    assert same(trace, whole)
    assert trace.steps == whole.steps
    assert len(reads) == 1
    assert encode(trace) == data
    assert dataclasses.replace(late(whole.header, read), margin=trace.margin[:1]).margin.tolist() == [trace.margin[0]]
    with pytest.raises(AttributeError, match="nothing"):
        _ = late(whole.header, read).nothing
