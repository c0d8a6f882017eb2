"""Rows of bytes give back what went in: every Arrow type, any slice, any order of rows."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.core.errors import SemistreamError
from semistream.relation.rows.row_cells import RowLimitError
from semistream.relation.rows.row_codec import RowCodec, Rows


def integers(type_: pa.DataType) -> st.SearchStrategy[int]:
    limits = np.iinfo(type_.to_pandas_dtype())
    return st.integers(int(limits.min), int(limits.max))


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda unscaled: decimal.Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))
    )


def seconds(count: int) -> dt.timedelta:
    return dt.timedelta(seconds=count)


WHOLE_SECONDS = st.times().map(lambda time: time.replace(microsecond=0))
MOMENTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0)
)
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    **{
        type_: integers(type_)
        for type_ in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        )
    },
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    **{type_: st.text(max_size=40) for type_ in (pa.string(), pa.large_string(), pa.string_view())},
    **{type_: st.binary(max_size=40) for type_ in (pa.binary(), pa.large_binary(), pa.binary_view())},
    pa.binary(0): st.just(b""),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.binary(16): st.binary(min_size=16, max_size=16),
    pa.binary(100): st.binary(min_size=100, max_size=100),
    pa.decimal32(7, 2): decimals(7, 2),
    pa.decimal64(15, 3): decimals(15, 3),
    pa.decimal128(38, 5): decimals(38, 5),
    pa.decimal256(76, 10): decimals(76, 10),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    **dict.fromkeys((pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")), WHOLE_SECONDS),
    **dict.fromkeys((*map(pa.timestamp, ("s", "ms", "us", "ns")), pa.timestamp("us", "Europe/Vienna")), MOMENTS),
    **{pa.duration(unit): st.integers(-(10**9), 10**9).map(seconds) for unit in ("s", "ms", "us", "ns")},
    pa.month_day_nano_interval(): st.tuples(integers(pa.int32()), integers(pa.int32()), integers(pa.int64())),
}


@st.composite
def masks(draw: st.DrawFn, rows: int) -> pa.Array | None:
    nulls = draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows))
    return None if nulls is None else pa.array(nulls, pa.bool_())


@st.composite
def leaves(draw: st.DrawFn, rows: int, nullable: bool = True) -> pa.Array:
    type_ = draw(st.sampled_from(list(LEAVES)))
    if not nullable and type_ == pa.null():
        type_ = pa.int64()
    values = LEAVES[type_]
    if nullable and draw(st.booleans()):
        values = st.none() | values
    return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), type_)


def offsets(sizes: list[int], type_: pa.DataType) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]), type_)


@st.composite
def lists(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    kind = draw(st.sampled_from(["list", "large_list", "list_view", "large_list_view", "fixed", "map"]))
    mask = draw(masks(rows))
    if kind == "fixed":
        size = draw(st.integers(0, 3))
        items = draw(arrays(rows * size, depth - 1))
        if size == 0:  # without items the constructor cannot tell the number of lists
            return pa.Array.from_buffers(pa.list_(items.type, 0), rows, [None], children=[items])
        return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
    sizes = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    if kind == "map":
        keys = draw(leaves(sum(sizes), nullable=False))
        items = draw(arrays(sum(sizes), depth - 1))
        return pa.MapArray.from_arrays(offsets(sizes, pa.int32()), keys, items, mask=mask)
    items = draw(arrays(sum(sizes), depth - 1))
    if kind == "list":
        return pa.ListArray.from_arrays(offsets(sizes, pa.int32()), items, mask=mask)
    if kind == "large_list":
        return pa.LargeListArray.from_arrays(offsets(sizes, pa.int64()), items, mask=mask)
    # Views may overlap and come in any order.
    ends = [draw(st.integers(size, sum(sizes))) for size in sizes]
    index = pa.int64() if kind == "large_list_view" else pa.int32()
    firsts = pa.array([end - size for end, size in zip(ends, sizes, strict=True)], index)
    cls = pa.LargeListViewArray if kind == "large_list_view" else pa.ListViewArray
    return cls.from_arrays(firsts, pa.array(sizes, index), items, mask=mask)


@st.composite
def structs(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    children = [draw(arrays(rows, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    names = [f"child {i}" for i in range(len(children))]
    return pa.StructArray.from_arrays(children, names, mask=draw(masks(rows)))


@st.composite
def encoded(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    kind = draw(st.sampled_from(["dictionary", "run_end", "extension"]))
    if kind == "extension":
        storage = draw(arrays(rows, depth - 1))
        if isinstance(storage, pa.ExtensionArray):  # Arrow has no extensions of extensions
            return storage
        return pa.ExtensionArray.from_storage(pa.opaque(storage.type, "thing", "vendor"), storage)
    values = draw(arrays(draw(st.integers(1, 4)), depth - 1))
    if kind == "dictionary":
        index = draw(st.sampled_from([pa.int8(), pa.uint16(), pa.int64()]))
        one = st.none() | st.integers(0, len(values) - 1)
        indices = pa.array(draw(st.lists(one, min_size=rows, max_size=rows)), index)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=draw(st.booleans()))
    ends = np.cumsum(np.full(len(values), max(1, -(-rows // len(values)))))
    run_type = draw(st.sampled_from([pa.int16(), pa.int32(), pa.int64()]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, run_type), values)
    return runs.slice(len(runs) - rows)


@st.composite
def unions(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    codes = draw(st.lists(st.sampled_from([3, 7]), min_size=rows, max_size=rows))
    types = pa.array(codes, pa.int8())
    names = ["one", "other"]
    if draw(st.booleans()):
        children = [draw(arrays(rows, depth - 1)) for _ in names]
        return pa.UnionArray.from_sparse(types, children, names, [3, 7])
    sizes = [2, 3]
    children = [draw(arrays(size, depth - 1)) for size in sizes]
    # Arrow wants the positions in each child not to fall.
    half = rows // 2
    positions = [int(i > half) if code == 3 else int(i > half) * 2 for i, code in enumerate(codes)]
    return pa.UnionArray.from_dense(types, pa.array(positions, pa.int32()), children, names, [3, 7])


@st.composite
def arrays(draw: st.DrawFn, rows: int, depth: int = 2) -> pa.Array:
    """Any array of any type, nested up to ``depth`` levels."""
    makers: list[Callable[..., st.SearchStrategy[pa.Array]]] = [lists, structs, encoded, unions]
    maker = draw(st.sampled_from([None, None, *makers])) if depth > 0 else None
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    whole = rows + before + after
    array = draw(leaves(whole)) if maker is None else draw(maker(whole, depth))
    return array.slice(before, rows)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 10))
    columns = [draw(arrays(rows)) for _ in range(draw(st.integers(1, 4)))]
    fields = [pa.field(f"column {i}", column.type, metadata={"place": str(i)}) for i, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata={"made": "up"}))


def check(batch: pa.RecordBatch, positions: list[int] | None = None) -> pa.RecordBatch:
    """Encode, scatter, decode, and compare as Python objects."""
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    assert len(rows) == batch.num_rows
    assert int(rows.lengths.sum()) == rows.data.size
    if not codec.variable:
        assert set(rows.lengths.tolist()) <= {codec.stride}
    picked = list(range(batch.num_rows)) if positions is None else positions
    data, starts = scattered(rows)
    result = codec.decode(data, starts[picked])
    result.validate(full=True)
    assert result.schema.equals(batch.schema, check_metadata=True)
    wanted = batch.to_pylist()
    assert result.to_pylist() == [wanted[i] for i in picked]
    again = codec.encode(codec.decode(rows.data, rows.starts))
    assert again.data.tobytes() == rows.data.tobytes(), "the same rows are the same bytes"
    return result


def scattered(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Lay the rows out backwards, with rubbish between them."""
    gap = np.full(3, 0xEE, dtype=np.uint8)
    pieces, starts, at = [gap], np.zeros(len(rows), dtype=np.int64), gap.size
    for i in reversed(range(len(rows))):
        row = rows.data[rows.starts[i] : rows.starts[i] + rows.lengths[i]]
        pieces += [row, gap]
        starts[i] = at
        at += row.size + gap.size
    return np.concatenate(pieces), starts


@settings(max_examples=300)
@given(st.data())
@pytest.mark.slow
def test_any_batch_survives_the_round_trip(data: st.DataObject) -> None:
    batch = data.draw(batches())
    rows = batch.num_rows
    positions = data.draw(st.lists(st.integers(0, rows - 1), max_size=20)) if rows else []
    check(batch)
    check(batch, positions)


@pytest.mark.parametrize("type_", LEAVES, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_every_leaf_type(type_: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | LEAVES[type_], max_size=20))
    check(pa.record_batch([pa.array(values, type_)], ["it"]))


def test_no_arrow_type_is_forgotten() -> None:
    """A type that a new Arrow brings must be thought about, and then listed here."""
    leaf_ids = {type_.id for type_ in LEAVES}
    nested_ids = {
        pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW,
        pa.lib.Type_FIXED_SIZE_LIST, pa.lib.Type_MAP, pa.lib.Type_STRUCT, pa.lib.Type_DICTIONARY,
        pa.lib.Type_RUN_END_ENCODED, pa.lib.Type_SPARSE_UNION, pa.lib.Type_DENSE_UNION,
    }  # fmt: skip
    # PyArrow has ids for these two, but no way to make them.
    unmakeable = {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME}
    known = {getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
    assert known - leaf_ids - nested_ids - unmakeable == set()


@pytest.mark.parametrize(
    "type_", [pa.float16(), pa.float32(), pa.float64(), pa.timestamp("ns"), pa.decimal128(38, 0)], ids=str
)
def test_every_bit_pattern_survives(type_: pa.DataType) -> None:
    """NaNs with payloads, negative zero, moments that Python cannot name."""
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, size=1000 * type_.bit_width // 8, dtype=np.uint8)
    array = pa.Array.from_buffers(type_, 1000, [None, pa.py_buffer(raw)])
    codec = RowCodec(pa.schema([("it", type_)]))
    rows = codec.encode(pa.record_batch([array], schema=codec.schema))
    out = codec.decode(rows.data, rows.starts).column(0)
    assert out.buffers()[1].to_pybytes() == raw.tobytes()
    assert out.buffers()[0] is None


def test_what_lies_under_a_null_leaves_no_trace() -> None:
    dirty = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 999, 3], dtype=np.int64))]
    )
    text = pa.Array.from_buffers(
        pa.string(),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 8, 9], np.int32)), pa.py_buffer(b"asecret!b")],
    )
    batch = pa.record_batch([dirty, text], ["number", "text"])
    clean = pa.record_batch({"number": [1, None, 3], "text": ["a", None, "b"]})
    codec = RowCodec(clean.schema)
    assert codec.encode(batch).data.tobytes() == codec.encode(clean).data.tobytes()


def test_layout_is_as_drawn() -> None:
    """The bytes of one fixed and one variable row, by hand."""
    fixed = RowCodec(pa.schema([("a", pa.int16()), ("b", pa.bool_()), ("c", pa.uint8())]))
    rows = fixed.encode(pa.record_batch([[258], [True], [None]], schema=fixed.schema))
    assert (fixed.variable, fixed.stride) == (False, 5)
    assert rows.data.tobytes() == bytes([0b100, 2, 1, 1, 0])
    variable = RowCodec(pa.schema([("a", pa.string()), ("b", pa.int8()), ("c", pa.binary())]))
    rows = variable.encode(pa.record_batch([["hi"], [-1], [b"xyz"]], schema=variable.schema))
    assert (variable.variable, variable.stride) == (True, 14)
    assert rows.data.tobytes() == bytes([19, 0, 0, 0, 0b000, 16, 0, 0, 0, 255, 19, 0, 0, 0, *b"hi", *b"xyz"])


@pytest.mark.parametrize("count", [0, 1, 5])
def test_rows_without_columns_still_count(count: int) -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    assert (codec.stride, rows.data.size) == (1, count)
    assert codec.decode(rows.data, rows.starts).num_rows == count


def test_a_column_of_nulls_takes_no_room() -> None:
    codec = RowCodec(pa.schema([("nothing", pa.null()), ("number", pa.int8())]))
    assert codec.stride == 2


def test_nine_columns_need_two_bytes_of_null_bits() -> None:
    columns = {f"c{i}": [None if i in (0, 8) else i, i] for i in range(9)}
    batch = pa.record_batch(columns)
    assert RowCodec(batch.schema).stride == 2 + 9 * 8
    check(batch, [1, 0, 0])


def test_a_batch_of_other_types_is_cast() -> None:
    codec = RowCodec(pa.schema([("a", pa.int64()), ("b", pa.large_string())]))
    rows = codec.encode(pa.record_batch({"a": pa.array([1], pa.int8()), "b": ["x"]}))
    assert codec.decode(rows.data, rows.starts).to_pylist() == [{"a": 1, "b": "x"}]


def test_rows_of_several_batches_decode_together() -> None:
    codec = RowCodec(pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))]))
    parts = [
        codec.encode(pa.record_batch([pa.array(words, codec.schema.types[0])], schema=codec.schema))
        for words in (["a", "b"], ["b", "c"])
    ]
    data = np.concatenate([part.data for part in parts])
    starts = np.concatenate([parts[0].starts, parts[1].starts + parts[0].data.size])
    decoded = codec.decode(data, starts)
    assert decoded.column(0).to_pylist() == ["a", "b", "b", "c"]
    assert decoded.column(0).dictionary.to_pylist() == ["a", "b", "c"]


def test_read_only_data_and_a_matrix_of_pages_decode_too() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", "yy"]})
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    pages = np.zeros((2, 64), dtype=np.uint8)
    for i in range(2):
        pages[i, 10 : 10 + rows.lengths[i]] = rows.data[rows.starts[i] :][: rows.lengths[i]]
    pages.flags.writeable = False
    assert codec.decode(pages, np.array([74, 10])).to_pylist() == batch.to_pylist()[::-1]


@pytest.mark.parametrize("start", [-1, 30, 1 << 40])
def test_a_start_outside_the_data_is_refused(start: int) -> None:
    codec = RowCodec(pa.schema([("a", pa.int64())]))
    with pytest.raises(SemistreamError, match=rf"row 1 of 2 would start at byte {start}"):
        codec.decode(np.zeros(36, dtype=np.uint8), np.array([0, start]))


def test_damaged_ends_are_refused() -> None:
    batch = pa.record_batch({"a": ["some text"]})
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    rows.data[7] = 0xFF
    with pytest.raises(SemistreamError, match="row 0 of 1 points outside its 18 bytes"):
        codec.decode(rows.data, rows.starts)


def test_damaged_lists_are_refused() -> None:
    batch = pa.record_batch({"a": [["some", "text"]]})
    codec = RowCodec(batch.schema)
    rows = codec.encode(batch)
    rows.data[codec.stride] = 200
    with pytest.raises(SemistreamError, match="the items of row 0 of 1 do not add up"):
        codec.decode(rows.data, rows.starts)


def test_strings_past_two_gigabytes_name_the_remedy() -> None:
    text = "x" * (1 << 20)
    for type_ in (pa.string(), pa.binary()):
        codec = RowCodec(pa.schema([("text", type_)]))
        rows = codec.encode(pa.record_batch([pa.array([text], type_)], schema=codec.schema))
        with pytest.raises(RowLimitError, match=rf"2147483648 bytes.*2147483647.*smaller.*large_{type_}"):
            codec.decode(rows.data, np.zeros(2048, dtype=np.int64))


def test_a_row_past_four_gigabytes_is_refused() -> None:
    claimed = pa.py_buffer(np.array([0, 1 << 32], dtype=np.int64))
    huge = pa.Array.from_buffers(pa.large_binary(), 1, [None, claimed, pa.py_buffer(np.zeros(1 << 32, np.uint8))])
    codec = RowCodec(pa.schema([("blob", pa.large_binary())]))
    with pytest.raises(RowLimitError, match="row 0 of the batch takes 4294967305 bytes"):
        codec.encode(pa.record_batch([huge], schema=codec.schema))


def test_more_words_than_a_small_dictionary_holds_are_refused() -> None:
    words = RowCodec(pa.schema([("word", pa.string())]))
    rows = words.encode(pa.record_batch({"word": [f"word {i}" for i in range(200)]}))
    small = RowCodec(pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))]))
    with pytest.raises(RowLimitError, match=r"200 different values.*int8 holds 128.*int32"):
        small.decode(rows.data, rows.starts)
    assert len(set(small.decode(rows.data, rows.starts[:128]).column(0).to_pylist())) == 128


def test_more_rows_than_short_run_ends_count_are_refused() -> None:
    plain = RowCodec(pa.schema([("number", pa.int8())]))
    rows = plain.encode(pa.record_batch([pa.array([1], pa.int8())], schema=plain.schema))
    runs = RowCodec(pa.schema([("number", pa.run_end_encoded(pa.int16(), pa.int8()))]))
    assert runs.decode(rows.data, np.zeros(32767, dtype=np.int64)).column(0).values.to_pylist() == [1]
    with pytest.raises(RowLimitError, match=r"32768 rows in a batch.*int16 count to 32767"):
        runs.decode(rows.data, np.zeros(32768, dtype=np.int64))
