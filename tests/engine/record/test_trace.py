"""A trace's bytes: round trip, equality, damage."""

import contextlib
import dataclasses
import math
import pickle

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Role, SamplingParams
from engine.record.columns import COLUMNS, KEYED, WHOLE_ROWS, empty
from engine.record.container import pack, sealed, unpack
from engine.record.envelope import MAGIC, opened, unwrap, wrap
from engine.record.trace import STORED, Trace, TraceHeader, decode, decoded, encode, lazy_trace, steps_of
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=12, seed=4, top_p=0.9)


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
    assert decode(encode(Trace(header=header, **empty(8)))).header == header


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
    assert opened(encode(other)).digest != opened(data).digest


@pytest.mark.parametrize(
    "change",
    [{"request": "other"}, {"lossless": False}, {"stream": 1}, {"eos_ids": (3,)}, {"prompt": (1,)}, {"proposer": "x"}],
)
def test_the_digest_depends_on_the_header(data, change):
    trace = decode(data)
    other = dataclasses.replace(trace, header=dataclasses.replace(trace.header, **change))
    assert opened(encode(other)).digest != opened(data).digest


def test_the_digest_outlives_another_compressor(data):
    again = MAGIC + zstandard.ZstdCompressor(level=19).compress(unwrap(data))
    assert again != data
    assert opened(again).digest == opened(data).digest
    assert same(decode(again), decode(data))


@pytest.mark.parametrize("keep", [0, 4, 7, 8, 9, 20, 0.5, 0.9, -1])
def test_a_truncated_trace_is_refused(data, keep):
    end = int(keep * len(data)) if isinstance(keep, float) else keep
    for read in (decode, opened):
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
            opened(broken)
        except TraceError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("data", [b"", b"hello", b"SATRAC10", MAGIC, MAGIC + b"\x00\x00"])
def test_what_is_no_trace_is_refused(data):
    with pytest.raises(TraceError):
        decode(data)


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


def test_a_reader_may_name_the_columns_that_it_needs(data):
    whole, bare = decode(data), opened(data)
    for only in (STORED, frozenset(("token", "p", "role")), frozenset(("logprob",))):
        partly = decoded(bare, only=only)
        assert partly.header == whole.header
        for name in only:
            column = getattr(whole, name)
            assert np.array_equal(getattr(partly, name), column, equal_nan=column.dtype.kind == "f") or not column.size
        assert not any(len(getattr(partly, name)) for name in KEYED)


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle was executed",))


def test_no_pickle_is_ever_read(capsys):
    with pytest.raises(TraceError):
        decode(wrap(sealed(pickle.dumps(Bomb()))))
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

    trace = lazy_trace(whole.header, read)
    assert (trace.header, reads) == (whole.header, [])
    assert same(trace, whole)
    assert trace.steps == whole.steps
    assert len(reads) == 1
    assert encode(trace) == data
    shorter = dataclasses.replace(lazy_trace(whole.header, read), role=trace.role[:1])
    assert shorter.role.tolist() == [trace.role[0]]
    with pytest.raises(AttributeError, match="nothing"):
        _ = lazy_trace(whole.header, read).nothing
