"""Packed rows give back what went in, whether their values are known to the packing or escaped."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.core.errors import SemistreamError
from semistream.relation.rows.packed.decoded_sizes import DecodedSizes
from semistream.relation.rows.packed.packing import (
    BYTES,
    CONSTANT,
    DICTIONARY,
    OFFSET,
    SYMBOLS,
    ColumnPacking,
    Packing,
    family,
)
from semistream.relation.rows.packed.symbol_table import SymbolTable
from semistream.relation.rows.row_cells import Cells
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_gather import RowGather

ARCHITECTURE = Path(__file__).parents[4] / "docs/architecture.md"
WORDS = (b"red", b"green", b"", b"a rather long word that takes several copies", "blå".encode())
TEXT = "With a practical carrying bag. Made in Europe. Robust and durable. "


def packing_of(kind: str, type_: pa.DataType, number: int, **more: Any) -> ColumnPacking:
    return ColumnPacking(number, kind, family(type_), **more)


def dictionary(type_: pa.DataType, number: int, width: int = 1, words: tuple[bytes, ...] = WORDS) -> ColumnPacking:
    lengths = np.array([len(word) for word in words], "<u4").tobytes()
    return packing_of(DICTIONARY, type_, number, width=width, table=b"".join(words), lengths=lengths)


def symbols(type_: pa.DataType, number: int, width: int = 1) -> ColumnPacking:
    text = np.frombuffer(TEXT.encode() * 4, np.uint8)
    table = SymbolTable.trained(Cells(None, text, np.arange(4) * len(TEXT), np.full(4, len(TEXT))))
    return packing_of(SYMBOLS, type_, number, width=width, table=table.table, lengths=table.lengths)


def constant(type_: pa.DataType, number: int, value: bytes | int | None) -> ColumnPacking:
    table = value.to_bytes(8, "little", signed=True) if isinstance(value, int) else value or b""
    return packing_of(CONSTANT, type_, number, width=0, table=table, lengths=None if value is None else b"")


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda value: decimal.Decimal((int(value < 0), tuple(int(digit) for digit in str(abs(value))), -scale))
    )


def integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(least, most) | st.integers(max(least, -5), 120)


MOMENTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
DAYS = st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1))
NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: integers(kind.bit_width) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: integers(kind.bit_width, False) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.date32(): DAYS,
    pa.date64(): DAYS,
    pa.time32("ms"): st.times().map(lambda time: time.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.timestamp("us", "UTC"): MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    pa.timestamp("s"): MOMENTS.map(lambda moment: moment.replace(microsecond=0)),
    pa.duration("ms"): st.integers(-(10**9), 10**9).map(lambda count: dt.timedelta(seconds=count)),
    pa.decimal128(12, 2): decimals(12, 2),
    pa.decimal128(38, 5): decimals(38, 5) | decimals(9, 5),
    pa.dictionary(pa.int16(), pa.int32()): integers(32),
}
TEXTS = st.sampled_from([word.decode() for word in WORDS]) | st.text(max_size=30) | st.just(TEXT * 6)
BLOBS = st.sampled_from(WORDS) | st.binary(max_size=30) | st.just(TEXT.encode() * 6)
STRINGS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXTS),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), BLOBS),
    pa.dictionary(pa.int32(), pa.string()): TEXTS,
}
PLAIN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
    pa.string(): st.text(max_size=20),
    pa.null(): st.none(),
}


@st.composite
def columns(draw: st.DrawFn, number: int) -> tuple[pa.DataType, st.SearchStrategy[Any], ColumnPacking | None]:
    """A type, its values, and one of the packings that it can have."""
    what = draw(st.sampled_from(["numbers", "strings", "plain"]))
    if what == "plain":
        type_ = draw(st.sampled_from(list(PLAIN)))
        return type_, PLAIN[type_], None
    if what == "strings":
        type_ = draw(st.sampled_from(list(STRINGS)))
        width = draw(st.integers(1, 2))
        packing = draw(
            st.sampled_from([
                dictionary(type_, number, width), symbols(type_, number, width), constant(type_, number, b"red"),
                packing_of(BYTES, type_, number, width=width), constant(type_, number, None),
            ])
        )  # fmt: skip
        return type_, STRINGS[type_], packing
    type_ = draw(st.sampled_from(list(NUMBERS)))
    if draw(st.booleans()):
        return type_, NUMBERS[type_], constant(type_, number, draw(st.sampled_from([None, 0, 7])))
    width, base, divisor = draw(st.integers(1, 6)), draw(st.sampled_from([0, -3, 100])), draw(st.sampled_from([1, 5]))
    return type_, NUMBERS[type_], packing_of(OFFSET, type_, number, width=width, base=base, divisor=divisor)


@st.composite
def packed_batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, dict[str, ColumnPacking]]:
    rows = draw(st.integers(0, 12))
    arrays, packings = [], {}
    for number in range(draw(st.integers(1, 6))):
        type_, values, packing = draw(columns(number * 300))
        values = draw(st.sampled_from([values, st.none() | values, st.none()]))
        before = draw(st.integers(0, 2))
        arrays.append(pa.array(draw(st.lists(values, min_size=rows + before, max_size=rows + before)), type_)[before:])
        if packing is not None:
            packings[f"c{number}"] = packing
    return pa.RecordBatch.from_arrays(arrays, [f"c{at}" for at in range(len(arrays))]), packings


def check(batch: pa.RecordBatch, packings: dict[str, ColumnPacking], picked: list[int]) -> None:
    codec = RowCodec(batch.schema, packings)
    assert codec.packings == packings
    rows = codec.encode(batch)
    assert rows.lengths.tolist() == codec.lengths(batch).tolist()
    assert int(rows.lengths.sum()) == rows.data.size
    wanted = batch.to_pylist()
    decoded = codec.decode(rows.data, rows.starts)
    decoded.validate(full=True)
    assert decoded.schema.equals(batch.schema)
    assert decoded.to_pylist() == wanted
    assert codec.encode(decoded).data.tobytes() == rows.data.tobytes(), "the same rows are the same bytes"
    starts = np.append(rows.starts, -1)[picked]
    for some in (batch.schema.names, batch.schema.names[:1], batch.schema.names[::-1][:2]):
        found = RowGather(codec, some)(rows.data, starts)
        for name, column in zip(some, found, strict=True):
            column.validate(full=True)
            assert column.type == batch.schema.field(name).type
            values = [row[name] for row in wanted] + [None]
            assert column.to_pylist() == [values[at] for at in picked]
    if batch.num_rows:
        if packings:
            sizes = DecodedSizes(codec)(rows.data, np.append(rows.starts, -1))
            assert sizes[-1] == 0
            assert (sizes[:-1] >= RowCodec(batch.schema).lengths(batch)).all()
            assert (sizes[:-1] <= codec.sizes_at(rows.data, rows.starts)).all()
        nothing = codec.nulls(3)
        assert nothing.to_pylist() == [dict.fromkeys(batch.schema.names)] * 3


@pytest.mark.slow
@settings(max_examples=300)
@given(packed_batches(), st.data())
def test_any_packed_batch_survives_the_round_trip(
    given_batch: tuple[pa.RecordBatch, dict[str, ColumnPacking]], data: st.DataObject
) -> None:
    batch, packings = given_batch
    check(batch, packings, data.draw(st.lists(st.integers(-1, batch.num_rows - 1), max_size=20)))


@pytest.mark.parametrize("long", [400, 40_000])
def test_known_and_escaped_values_of_every_kind(long: int) -> None:
    """The same round trip for one batch, in which each row escapes another set of columns; also if rows are long."""
    string, number = pa.string(), pa.int32()
    packings = {
        "word": dictionary(string, 0), "text": symbols(string, 1), "short": packing_of(BYTES, string, 2, width=1),
        "count": packing_of(OFFSET, number, 3, width=1, base=10, divisor=10), "same": constant(string, 4, b"red"),
        "seldom": constant(number, 5, None),
    }  # fmt: skip
    known = {"word": "green", "text": TEXT, "short": "x", "count": 90, "same": "red", "seldom": None, "plain": 0.5}
    other = {
        "word": "mauve",
        "text": "ÿ" * 300,
        "short": "y" * long,
        "count": 95,
        "same": "",
        "seldom": -7,
        "plain": 1.5,
    }
    nulls = dict.fromkeys(known)
    rows = [known, other, nulls]
    rows += [{**known, name: other[name]} for name in known]
    rows += [{**other, name: None} for name in known]
    schema = pa.schema({name: packing_type(name, packings) for name in known})
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    check(batch, packings, [-1, *range(len(rows)), 1, -1, 0])
    check(batch.slice(4, 0), packings, [])
    lengths = RowCodec(schema, packings).lengths(batch.slice(0, 1))
    assert lengths.tolist() == [4 + 1 + 1 + 1 + 1 + 1 + 8 + len_of(TEXT, packings["text"]) + 1]


def packing_type(name: str, packings: dict[str, ColumnPacking]) -> pa.DataType:
    if name not in packings:
        return pa.float64()
    return pa.string() if packings[name].family == "bytes" else pa.int32()


def len_of(text: str, packing: ColumnPacking) -> int:
    table = SymbolTable(packing.table, packing.lengths or b"")
    cell = np.frombuffer(text.encode(), np.uint8)
    return int(table.compressed(Cells(None, cell, np.array([0]), np.array([cell.size])))[2][0])


def test_decoded_bytes_are_those_of_the_values() -> None:
    """The same words and text, however they are packed, and one escape, which counts with its six bytes in the row."""
    batch = pa.record_batch(
        {"word": ["green", "red", "none"], "text": [TEXT, None, "Robust"], "plain": ["a", "bc", ""]}
    )
    codec = RowCodec(batch.schema, {"word": dictionary(pa.string(), 0), "text": symbols(pa.string(), 1)})
    rows = codec.encode(batch)
    sizes = DecodedSizes(codec)(rows.data, rows.starts)
    least = codec.stride + 2 * 8
    assert (sizes - least).tolist() == [5 + len(TEXT) + 1, 3 + 0 + 2, 6 + 4 + 6 + 0]
    with pytest.raises(SemistreamError, match="not packed"):
        DecodedSizes(RowCodec(batch.schema))


def test_a_packed_row_is_as_drawn() -> None:
    schema = pa.schema({"word": pa.string(), "count": pa.int32(), "rare": pa.int64(), "text": pa.binary()})
    codec = RowCodec(schema, {
        "word": dictionary(pa.string(), 1), "count": packing_of(OFFSET, pa.int32(), 2, width=2, base=1000),
        "rare": constant(pa.int64(), 3, None), "text": packing_of(BYTES, pa.binary(), 770, width=1),
    })  # fmt: skip
    batch = pa.record_batch([["green", "x"], [1258, None], [None, 9], [b"hi", b"h"]], schema=schema)
    rows = codec.encode(batch)
    assert (codec.variable, codec.stride) == (True, 9)
    assert rows.data.tobytes() == bytes([
        *[11, 0, 0, 0, 0b0000, 2, 2, 1, 2, *b"hi"],
        *[31, 0, 0, 0, 0b0110, 255, 0, 0, 1, *b"h", 1, 0, 1, 0, 0, 0, *b"x", 3, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
    ])  # fmt: skip


def test_without_packings_rows_are_what_they_were() -> None:
    batch = pa.record_batch({"id": [7, 8], "name": ["seven", None]})
    assert (
        RowCodec(batch.schema, {}).encode(batch).data.tobytes() == RowCodec(batch.schema).encode(batch).data.tobytes()
    )
    assert RowCodec(batch.schema).packed is None


def test_a_wider_column_reads_rows_of_the_narrow_one() -> None:
    """int32 becomes int64, a decimal gets more digits, and a dictionary becomes plain: packed rows stay as they are."""
    narrow = pa.schema({"n": pa.int32(), "d": pa.decimal128(5, 2), "w": pa.dictionary(pa.int8(), pa.string())})
    wide = pa.schema({"n": pa.int64(), "d": pa.decimal128(38, 2), "w": pa.large_string()})
    packings = {
        "n": packing_of(OFFSET, pa.int32(), 0, width=1), "w": dictionary(pa.string(), 2),
        "d": packing_of(OFFSET, pa.decimal128(5, 2), 1, width=1, base=-100, divisor=50),
    }  # fmt: skip
    batch = pa.record_batch(
        [[-2, 5, None], [decimal.Decimal("0.50"), decimal.Decimal("-9.99"), None], ["red", "no such", None]],
        schema=pa.schema({"n": pa.int32(), "d": pa.decimal128(5, 2), "w": pa.string()}),
    ).cast(narrow)
    rows = RowCodec(narrow, packings).encode(batch)
    assert RowCodec(wide, packings).decode(rows.data, rows.starts).to_pylist() == batch.to_pylist()
    assert RowCodec(wide, packings).encode(batch.cast(wide)).data.tobytes() == rows.data.tobytes()


def test_a_packing_for_other_types_is_ignored() -> None:
    codec = RowCodec(pa.schema({"day": pa.timestamp("s")}), {"day": packing_of(OFFSET, pa.date32(), 0, width=2)})
    assert (codec.packings, codec.packed, codec.variable) == ({}, None, False)


def test_a_value_that_the_type_does_not_hold_is_refused() -> None:
    packings = {"n": packing_of(OFFSET, pa.int64(), 0, width=2)}
    wide, narrow = RowCodec(pa.schema({"n": pa.int64()}), packings), RowCodec(pa.schema({"n": pa.int8()}), packings)
    rows = wide.encode(pa.record_batch({"n": [1, 300]}))
    assert narrow.decode(rows.data, rows.starts[:1]).to_pylist() == [{"n": 1}]
    with pytest.raises(SemistreamError, match=r"row 1 of 2 has the value 300, which the type int8 does not hold"):
        narrow.decode(rows.data, rows.starts)


def damaged_rows() -> tuple[RowCodec, pa.RecordBatch]:
    schema = pa.schema({"word": pa.string(), "text": pa.string(), "n": pa.int64(), "rare": pa.int64()})
    codec = RowCodec(schema, {
        "word": dictionary(pa.string(), 0), "text": symbols(pa.string(), 1),
        "n": packing_of(OFFSET, pa.int64(), 2, width=1), "rare": constant(pa.int64(), 3, None),
    })  # fmt: skip
    return codec, pa.record_batch([["other"], [TEXT], [5000], [1]], schema=schema)


@pytest.mark.parametrize("names", [["word"], ["text"], ["n"], ["rare"], ["word", "text", "n", "rare"]], ids=str)
def test_a_truncated_row_is_refused(names: list[str]) -> None:
    codec, batch = damaged_rows()
    rows = codec.encode(batch)
    for size in range(rows.data.size):
        with pytest.raises(SemistreamError, match="row 0 of 1"):
            codec.decode(rows.data[:size], rows.starts)
        with contextlib.suppress(SemistreamError):  # a column that is complete may be read
            found = RowGather(codec, names)(rows.data[:size], rows.starts)
            assert [column.to_pylist() for column in found] == [batch.column(name).to_pylist() for name in names]
            assert names == ["text"]


def test_no_flipped_byte_is_read_past_the_end() -> None:
    codec, batch = damaged_rows()
    rows = codec.encode(batch)
    raised = 0
    for at in range(rows.data.size):
        for value in (0, 1, 0x7F, 0xFF):
            data = rows.data.copy()
            data[at] = value
            try:
                RowGather(codec, batch.schema.names)(data, rows.starts)
                codec.decode(data, rows.starts)
            except (SemistreamError, pa.ArrowInvalid):
                raised += 1
    assert raised > rows.data.size // 4


def test_a_packing_is_stored_and_copied() -> None:
    packing = Packing((
        symbols(pa.string(), 9), dictionary(pa.binary(), 3, 2), constant(pa.int8(), 1, 0),
        constant(pa.string(), 2, None), packing_of(OFFSET, pa.timestamp("us"), 4, width=3, base=-5, divisor=7),
    ))  # fmt: skip
    assert [column.number for column in packing.columns] == [1, 2, 3, 4, 9]
    stored = Packing.from_json(json.loads(json.dumps(packing.to_json())))
    copied = pickle.loads(pickle.dumps(packing))
    assert packing == stored == copied
    assert packing.id == stored.id == copied.id
    assert len({packing, stored, copied}) == 1
    assert packing.id != Packing(packing.columns[1:]).id
    assert packing.nbytes > 1000
    assert set(packing.by_name(["a", "b", "c"], [3, 8, 9])) == {"a", "c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 3}, "no packing 'dictionary' with fields of 3 bytes"),
        ({"kind": "magic"}, "no packing 'magic'"),
        ({"column": 70000}, "column 70000"),
        ({"lengths": None}, "0 words in"),
        ({"column": "x"}, "invalid literal"),
        ({"table": "eJwDAAAAAAE="}, "words in 0 bytes"),
    ],
)
def test_a_packing_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    stored = dictionary(pa.string(), 3).to_json()
    stored = {name: value for name, value in {**stored, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        ColumnPacking.from_json(stored)


def test_the_row_that_the_documentation_draws() -> None:
    drawing = re.findall(r"^ ?\d+  ((?:[0-9a-f]{2} )+) ", ARCHITECTURE.read_text(), re.MULTILINE)
    schema = pa.schema({"colour": pa.string(), "price": pa.int32(), "name": pa.string(), "currency": pa.string()})
    lengths = np.array([3, 5], "<u4").tobytes()
    packings = {
        "colour": ColumnPacking(1, DICTIONARY, "bytes", 1, table=b"redgreen", lengths=lengths),
        "price": ColumnPacking(2, OFFSET, "integer", 2, base=49, divisor=50),
        "name": ColumnPacking(3, SYMBOLS, "bytes", 1, table=b"Coffee \0Grinder\0", lengths=bytes([7, 7])),
        "currency": ColumnPacking(4, CONSTANT, "bytes", 0, table=b"EUR", lengths=b""),
    }
    product = [{"colour": "teal", "price": 1999, "name": "Coffee Grinder 2", "currency": "EUR"}]
    batch = pa.RecordBatch.from_pylist(product, schema)
    codec = RowCodec(schema, packings)
    rows = codec.encode(batch)
    assert rows.data.tobytes() == bytes.fromhex("".join(drawing))
    assert codec.decode(rows.data, rows.starts).to_pylist() == product
    assert RowCodec(schema).encode(batch).lengths.tolist() == [44]


def test_two_packings_of_a_column_are_refused() -> None:
    with pytest.raises(ValueError, match=r"two packings: \[1, 1\]"):
        Packing((constant(pa.int8(), 1, 0), constant(pa.int8(), 1, 1)))
