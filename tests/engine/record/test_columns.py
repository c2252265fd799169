"""The table of columns: every record fits it, and a column that was cut, lengthened or retyped is named in one line."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from engine.core.errors import TraceError
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.columns import COLUMNS, TABLE, shape_fault
from engine.record.trace import Trace, decode, encode
from tests.engine.build import Setup, generate, requests

SAMPLED = SamplingParams(temperature=0.9, max_new_tokens=12, seed=4, top_p=0.9)


@cache
def made(level: RecordLevel, protocol: Protocol) -> Trace:
    return decode(generate(Setup(level=level, protocol=protocol), requests(2, SAMPLED))["r1"].trace)


def other_type(column):
    return column.astype("f8") if column.dtype.kind != "f" else np.nan_to_num(column).astype("i4")


CHANGES = {
    "cut": lambda column: column[:-1],
    "lengthened": lambda column: np.concatenate([column, np.zeros((1, *column.shape[1:]), column.dtype)]),
    "emptied": lambda column: column[:0],
    "retyped": other_type,
    "flattened": lambda column: column.reshape(-1) if column.ndim > 1 else column[:, None],
}


def test_the_table_names_the_fields_of_a_trace():
    assert {field.name for field in dataclasses.fields(Trace)} == {"header", *COLUMNS}


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.medium
def test_every_changed_column_is_named_in_one_line(level, protocol):
    trace = made(level, protocol)
    assert shape_fault(trace) is None
    for column in TABLE:
        given = getattr(trace, column.name)
        for name, change in CHANGES.items():
            changed = change(given)
            same_shape = changed.shape == given.shape and changed.dtype == given.dtype
            free = not len(changed) and column.name in (
                "draft_version",
                "best_id",
                "logprob",
                "margin",
                "draft_best_id",
            )
            if same_shape or (name == "flattened" and not len(given)) or (free and level in column.optional):
                continue
            broken = dataclasses.replace(trace, **{column.name: changed})
            fault = shape_fault(broken)
            assert fault, (column.name, name)
            assert "\n" not in fault
            if len(changed) or len(given) != len(changed):
                with pytest.raises(TraceError, match="damaged trace: "):
                    decode(encode(broken))


def test_a_trace_without_steps_fits():
    trace = made(RecordLevel.TOPK, Protocol.CHAIN)
    none = dataclasses.replace(trace, **{name: getattr(trace, name)[:0] for name in COLUMNS})
    assert shape_fault(none) is None
    assert decode(encode(none)).steps == 0
